"""A store of each test's own, built by the real migrations."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cadenza.store.database import Database, migrate


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(f"sqlite:///{tmp_path}/cadenza.db")
    await migrate(database)
    yield database
    await database.close()
