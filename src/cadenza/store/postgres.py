"""A store in Postgres, for more than one machine. SQLAlchemy's asyncpg engine carries the statements.

Reads and transactions share one pool. Reads run in AUTOCOMMIT mode, so each statement sees the newest committed
state. Waits for a lock, for a connection of the pool and for the server are all bounded.
"""

import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import URL, Connection, bindparam, func, select, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, NotSupportedError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from cadenza.store import postgres_watch
from cadenza.store.statements import Statement, Values
from cadenza.store.store import WAIT_S, Row, StoreRefused, StoreUnavailable, Transaction, unavailable

CONNECTIONS = 8
MIGRATION_LOCK = 0x6361_6465_6E7A_61  # the advisory lock that a migration holds
MIGRATION_LOCK_WAIT_S = 60
NO_TABLE = "42P01"
BAD_VALUE = "22"  # the class of Postgres's data exceptions
PING = Statement(text("SELECT 1"))
HAS_SCHEMA = Statement(text("SELECT to_regclass('alembic_version') IS NOT NULL"))
REVISION = Statement(text("SELECT version_num FROM alembic_version"))
TRY_LOCK = select(func.pg_try_advisory_lock(bindparam("number")))
UNLOCK = select(func.pg_advisory_unlock(bindparam("number")))

T = TypeVar("T")


class PostgresTransaction:
    """Runs statements on one connection."""

    is_sqlite = False

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def row(self, statement: Statement, values: Values) -> Row | None:
        found = self._connection.execute(statement.core, values).first()
        return None if found is None else tuple(found)

    def rows(self, statement: Statement, values: Values) -> list[Row]:
        return [tuple(row) for row in self._connection.execute(statement.core, values)]

    def change(self, statement: Statement, values: Values) -> int:
        return self._connection.execute(statement.core, values).rowcount

    def change_each(self, statement: Statement, values: Sequence[Values]) -> None:
        self._connection.execute(statement.core, values)

    def announce(self) -> None:
        self._connection.exec_driver_sql(postgres_watch.ANNOUNCE)


class PostgresStore:
    """A pool of connections to one database."""

    is_sqlite = False
    path = None
    lock_grace_s = 2.0  # by then a living process has noticed that its connection is lost, and its lock with it

    def __init__(self, url: URL, wait_s: float = WAIT_S) -> None:
        self._url = url
        self._wait_s = wait_s
        self._where = f"postgresql://{url.host or ''}/{url.database or ''}"
        self._writer = _make_engine(url, wait_s)
        self._reader = self._writer.execution_options(isolation_level="AUTOCOMMIT")

    async def row(self, statement: Statement, values: Values) -> Row | None:
        async with self._connected(self._reader) as connection:
            found = (await connection.execute(statement.core, values)).first()
            return None if found is None else tuple(found)

    async def rows(self, statement: Statement, values: Values) -> list[Row]:
        async with self._connected(self._reader) as connection:
            return [tuple(row) for row in await connection.execute(statement.core, values)]

    async def transact(self, work: Callable[[Transaction], T], *, is_brief: bool = False) -> T:  # noqa: ARG002 for SQLite
        async with self._connected(self._writer) as connection, connection.begin():
            return await connection.run_sync(lambda inner: work(PostgresTransaction(inner)))

    @contextlib.asynccontextmanager
    async def watch(self, wake: Callable[[], None]) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as watching:
            try:
                await watching.enter_async_context(postgres_watch.watch(self._connect, wake))
            except postgres_watch.CONNECTION_ERRORS as error:
                raise self._unavailable(str(error).partition("\n")[0] or "no connection") from None
            yield

    async def _connect(self) -> postgres_watch.Connection:
        return await asyncpg.connect(self._url.render_as_string(hide_password=False), timeout=self._wait_s)

    async def ping(self) -> None:
        await self.row(PING, {})

    async def close(self) -> None:
        await self._writer.dispose()

    async def revision(self) -> str | None:
        if await self.row(HAS_SCHEMA, {}) != (True,):
            return None
        found = await self.row(REVISION, {})
        return None if found is None else str(found[0])

    async def upgrade(self, revision: str = "head") -> Path | None:
        from cadenza.store.migrations import upgrade  # noqa: PLC0415 slow to import, and rarely needed

        async with self._connected(self._writer) as connection, connection.begin():
            await connection.execute(text(f"SET LOCAL lock_timeout = '{MIGRATION_LOCK_WAIT_S}s'"))
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
            await connection.execute(text(f"SET LOCAL lock_timeout = '{round(WAIT_S)}s'"))
            await connection.run_sync(upgrade, revision)
        return None

    @contextlib.asynccontextmanager
    async def process_lock(self, name: str) -> AsyncIterator[bool]:
        """Hold an advisory lock on a connection of its own; Postgres drops the lock with the connection."""
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
        async with self._connected(self._reader) as connection:
            is_taken = bool((await connection.execute(TRY_LOCK, {"number": number})).scalar_one())
            try:
                yield is_taken
            finally:
                if is_taken:
                    await connection.execute(UNLOCK, {"number": number})

    def process_lock_names(self) -> list[str]:
        return []

    @contextlib.asynccontextmanager
    async def _connected(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        """Lend a connection and turn the driver's errors into ours. An OSError is the store's only while connecting."""
        is_open = False
        try:
            async with engine.connect() as connection:
                is_open = True
                yield connection
        except IntegrityError as error:
            raise StoreRefused(f"The store refused a change: {_first_line(error)}.") from None
        except (ProgrammingError, DataError, NotSupportedError) as error:
            if getattr(error.orig, "sqlstate", None) != NO_TABLE:
                raise
            raise self._unavailable("no such table") from None
        except (DBAPIError, PoolTimeout) as error:
            if _is_bad_value(error):
                raise StoreRefused(f"The store refused a value: {_reason(error)}.") from None
            raise self._unavailable(_reason(error)) from None
        except OSError as error:
            if is_open:
                raise
            raise self._unavailable(error.strerror or "no connection") from None

    def _unavailable(self, reason: str) -> StoreUnavailable:
        advice = "Check that Postgres runs and that the address names the right host, user and database."
        return unavailable(self._where, reason, advice)


def _make_engine(url: URL, wait_s: float) -> AsyncEngine:
    settings = {"application_name": "cadenza", "lock_timeout": f"{round(wait_s * 1000)}ms"}
    return create_async_engine(
        _asyncpg_url(url),
        connect_args={"timeout": wait_s, "server_settings": settings},
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=wait_s,
        hide_parameters=True,
    )


def _asyncpg_url(url: URL) -> URL:
    """Write libpq's `sslmode` as `ssl`, asyncpg's name for it."""
    mode = url.query.get("sslmode")
    if isinstance(mode, str):
        url = url.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})
    return url.set(drivername="postgresql+asyncpg")


def _is_bad_value(error: DBAPIError | PoolTimeout) -> bool:
    """Tell a value of ours that does not fit, found by the driver or by Postgres, from a failing connection."""
    cause = getattr(error, "orig", None)
    sqlstate = getattr(cause, "sqlstate", None) or ""
    return isinstance(getattr(cause, "__cause__", None), ValueError) or sqlstate.startswith(BAD_VALUE)


def _reason(error: DBAPIError | PoolTimeout) -> str:
    """Return the driver's message up to the first colon: after it, the message may quote a value."""
    if isinstance(error, PoolTimeout):
        return "all its connections were busy for too long"
    return _first_line(error).partition(":")[0]


def _first_line(error: DBAPIError) -> str:
    """Return what is wrong; Postgres quotes the offending values on the lines after the first."""
    return str(error.orig).partition("\n")[0]
