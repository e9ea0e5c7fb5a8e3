"""Opening the store for commands that only read: it must be there, with the schema of this program."""

import contextlib
import sqlite3
from pathlib import Path

import pytest

from cadenza.control.store.prepare import require_store
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.store import Store, StoreUnavailable


async def test_a_store_that_is_there_is_enough_to_read(store: Store, tmp_path: Path) -> None:
    """A current store passes; one that does not exist, or has no schema, is refused and not made."""
    await require_store(store)
    missing = SqliteStore(tmp_path / "none" / "cadenza.db")
    with pytest.raises(StoreUnavailable, match="There is no store"):
        await require_store(missing)
    assert not missing.path.parent.exists()
    (tmp_path / "empty.db").touch()
    empty = SqliteStore(tmp_path / "empty.db")
    with pytest.raises(StoreUnavailable, match="cadenza migrate"):
        await require_store(empty)
    await empty.close()


async def test_a_store_of_a_newer_program_is_not_read(store: Store) -> None:
    """A schema that this program does not know is refused."""
    assert store.path
    with contextlib.closing(sqlite3.connect(store.path)) as other, other:
        for table in ("schema_revision", "alembic_version"):
            other.execute(f"UPDATE {table} SET version_num = '9999'")
    with pytest.raises(StoreUnavailable, match="newer program"):
        await require_store(store)
