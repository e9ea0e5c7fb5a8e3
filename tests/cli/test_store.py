"""cadenza migrate, and stores that cannot be used."""

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.program import run, run_here


def test_migrate_twice(tmp_path: Path) -> None:
    """The first run creates the store, readable by its owner only; the second changes nothing."""
    first, second = run(tmp_path, "migrate"), run_here(tmp_path, "migrate")
    assert first.returncode == second.returncode == 0
    assert "schema is at revision" in first.stderr
    assert first.stderr == second.stderr
    assert _mode(tmp_path / "data") == 0o700
    assert _mode(tmp_path / "data" / "cadenza.db") == 0o600


@pytest.mark.parametrize("args", [("migrate",), ("serve", "--port", "0")], ids=" ".join)
def test_store_of_a_newer_program_is_left_alone(furnished: Path, args: tuple[str, ...]) -> None:
    """No command changes a schema that it does not know; it says which program to run."""
    age(furnished)
    done = run(furnished, *args)
    assert done.returncode == 1
    assert done.stderr.startswith("cadenza: ")
    assert "newer program" in done.stderr


def test_file_that_is_not_a_database(tmp_path: Path) -> None:
    """A store address that names some other file is refused with the reason."""
    (tmp_path / "notes.txt").write_text("These are notes, and long enough to be looked into by anyone." * 10)
    (tmp_path / "cadenza.toml").write_text('[store]\nurl = "sqlite:///./notes.txt"\n')
    done = run_here(tmp_path, "account", "list")
    assert done.returncode == 1
    assert done.stderr.startswith("cadenza: ")
    assert "notes.txt cannot be used: file is not a database" in done.stderr


def age(folder: Path) -> None:
    """Make the store look as if a later version had migrated it."""
    with closing(sqlite3.connect(folder / "data" / "cadenza.db")) as connection, connection:
        connection.execute("UPDATE schema_version SET revision = '9999', oldest_program = '9999'")


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
