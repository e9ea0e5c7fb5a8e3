"""The modes of a store's files. transcripts/stores.txt has the rest."""

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

from tests.cli.program import run


def test_a_store_is_its_owners(tmp_path: Path) -> None:
    """Folder and file can be read by their owner only."""
    assert run(tmp_path, "migrate").returncode == 0
    assert _mode(tmp_path / "data") == 0o700
    assert _mode(tmp_path / "data" / "cadenza.db") == 0o600


def age(folder: Path) -> None:
    """Make the store look as if a later version had migrated it."""
    with closing(sqlite3.connect(folder / "data" / "cadenza.db")) as connection, connection:
        connection.execute("UPDATE schema_version SET revision = '9999', oldest_program = '9999'")


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
