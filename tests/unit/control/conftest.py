"""A store of each test's own, built by the real migrations."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cadenza.store.migrate import migrate
from cadenza.store.sqlite import SqliteStore
from cadenza.store.store import Store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = SqliteStore(tmp_path / "cadenza.db")
    await migrate(opened)
    yield opened
    await opened.close()
