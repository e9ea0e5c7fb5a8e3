"""A connection beside the store's own, as another program would have it, for locks and for changes behind its back."""

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from typing import Any, Protocol

import asyncpg  # type: ignore[import-untyped]

WAIT_S = 60.0
COUNT_OTHERS = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
DROP_OTHERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"


class Aside(Protocol):
    """Runs SQL as it is written."""

    async def execute(self, sql: str) -> None: ...

    async def rows(self, sql: str) -> list[tuple[Any, ...]]: ...


class SqliteAside:
    """On SQLite."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def execute(self, sql: str) -> None:
        self._connection.execute(sql)

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql).fetchall()


class PostgresAside:
    """On Postgres."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def execute(self, sql: str) -> None:
        await self._connection.execute(sql)

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self._connection.fetch(sql)]


@contextlib.asynccontextmanager
async def aside(url: str) -> AsyncIterator[Aside]:
    """Each statement is committed at once."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)) as connection:
            yield SqliteAside(connection)
        return
    connection = await asyncpg.connect(url)
    try:
        yield PostgresAside(connection)
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def transaction(url: str) -> AsyncIterator[Aside]:
    """A transaction that stays open for the block, with the write lock on SQLite, and is then committed."""
    async with aside(url) as other:
        await other.execute("BEGIN IMMEDIATE" if url.startswith("sqlite") else "BEGIN")
        yield other
        await other.execute("COMMIT")
