"""cadenza migrate, and stores that no command can use."""

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.program import run


def test_migrate_twice(tmp_path: Path) -> None:
    """The first run makes the store, for its owner only; the second finds nothing to do and says the same."""
    first, second = run(tmp_path, "migrate"), run(tmp_path, "migrate")
    assert first.returncode == second.returncode == 0
    assert "schema is at revision" in first.stderr
    assert first.stderr == second.stderr
    assert _mode(tmp_path / "data") == 0o700
    assert _mode(tmp_path / "data" / "cadenza.db") == 0o600


@pytest.mark.parametrize("args", [("migrate",), ("serve", "--port", "0")], ids=" ".join)
def test_store_of_a_newer_program_is_left_alone(furnished: Path, args: tuple[str, ...]) -> None:
    """No command touches a schema that it does not know; it says which program to run."""
    age(furnished)
    done = run(furnished, *args)
    assert done.returncode == 1
    assert done.stderr.startswith("cadenza: ")
    assert "run the newer program" in done.stderr


def test_file_that_is_no_store(tmp_path: Path) -> None:
    """A store's address that leads to some other file is told as that."""
    (tmp_path / "notes.txt").write_text("These are notes, and long enough to be looked into by anyone." * 10)
    (tmp_path / "cadenza.toml").write_text('[store]\nurl = "sqlite:///./notes.txt"\n')
    done = run(tmp_path, "account", "list")
    assert done.returncode == 1
    assert done.stderr.startswith("cadenza: ")
    assert "notes.txt cannot be used: file is not a database" in done.stderr


def age(folder: Path) -> None:
    """Make the store look like one that a later version has migrated."""
    with closing(sqlite3.connect(folder / "data" / "cadenza.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
