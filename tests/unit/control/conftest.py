"""A store of each test's own, a copy of one that the real migrations made."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.store import Store
from tests.migrated import copy_migrated_store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    path = tmp_path / "cadenza.db"
    copy_migrated_store(path)
    opened = SqliteStore(path)
    yield opened
    await opened.close()
