"""The store and the shared state that an audit makes for itself: what it says if their server is lost meanwhile."""

import re
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest

from cadenza.audit.private_store import private_shared_state, private_store
from cadenza.core.errors import ControlError
from tests.postgres import Postgres
from tests.valkey import running_valkey

END_OTHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


async def test_a_database_that_cannot_be_dropped_is_named(postgres: Postgres, tmp_path: Path) -> None:
    """If the connection to Postgres is lost during the audit, the error says which database to drop."""
    with postgres.database() as url:
        own = await asyncpg.connect(url)
        with pytest.raises(ControlError, match="When it answers again, drop the database") as lost:
            async with private_store(url, tmp_path):
                await own.execute(END_OTHERS)
        [name] = re.findall("cadenza_audit_[0-9a-f]+", str(lost.value))
        await own.execute(f"DROP DATABASE {name}")
        await own.close()


async def test_a_dropped_database_is_gone(postgres: Postgres, tmp_path: Path) -> None:
    """The database of an audit exists during the block and not after it."""
    with postgres.database() as url:
        async with private_store(url, tmp_path) as made:
            await (await asyncpg.connect(made)).close()
        with pytest.raises(asyncpg.InvalidCatalogNameError):
            await asyncpg.connect(made)


async def test_a_lost_valkey_is_told() -> None:
    """If Valkey is lost during the audit, the error says which database to empty."""
    with running_valkey() as server:  # noqa: SIM117 the audit ends before it
        with pytest.raises(ControlError, match="When it answers again, empty its database 15"):
            async with private_shared_state(server.url):
                server.kill()
