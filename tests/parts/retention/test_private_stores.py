"""The store and the shared state that an audit makes for itself: what it says if their server is lost meanwhile."""

import re

import asyncpg  # type: ignore[import-untyped]
import pytest

from cadenza.core.errors import ControlError
from cadenza.parts.postgres import contents as postgres_contents
from cadenza.parts.valkey import contents as valkey_contents
from tests.postgres import Postgres
from tests.valkey import running_valkey

END_OTHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


async def test_a_database_that_cannot_be_dropped_is_named(postgres: Postgres) -> None:
    """If the connection to Postgres is lost during the audit, the error says which database to drop."""
    with postgres.database() as url:
        own = await asyncpg.connect(url)
        with pytest.raises(ControlError, match="When it answers again, drop the database") as lost:
            async with postgres_contents.empty_database(url):
                await own.execute(END_OTHERS)
        [name] = re.findall("cadenza_retention_[0-9a-f]+", str(lost.value))
        await own.execute(f"DROP DATABASE {name}")
        await own.close()


async def test_a_dropped_database_is_gone(postgres: Postgres) -> None:
    """The database of an audit exists during the block and not after it."""
    with postgres.database() as url:
        async with postgres_contents.empty_database(url) as made:
            await (await asyncpg.connect(made)).close()
        with pytest.raises(asyncpg.InvalidCatalogNameError):
            await asyncpg.connect(made)


async def test_a_lost_valkey_is_told() -> None:
    """If Valkey is lost during the audit, the error says which database to empty."""
    with running_valkey() as server:  # noqa: SIM117 the audit ends before it
        with pytest.raises(ControlError, match="When it answers again, empty its database 15"):
            async with valkey_contents.empty_database(server.url):
                server.kill()


async def test_a_database_of_valkey_that_has_keys_is_left_alone() -> None:
    """The audit takes a database without keys, and deletes its own keys only."""
    with running_valkey() as server:
        server.command("SET", "a", "1")
        server.command("MOVE", "a", "15")
        async with valkey_contents.empty_database(server.url) as url:
            assert url.endswith("14")
        assert b"db15:keys=1" in server.command("INFO", "keyspace")
