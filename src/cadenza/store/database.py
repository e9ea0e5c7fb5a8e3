"""One face for SQLite and Postgres: read, write, and the state of the schema.

A failing store raises StoreUnavailable, a constraint or trigger that says no raises StoreRefused; neither shows SQL
parameters, and a transaction that raises or is cancelled is rolled back. Cancelled during the commit itself, it
may still have been committed: who must know asks the store.
"""

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from sqlalchemy import URL, Connection, column, inspect, make_url, select, table, text
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NotSupportedError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection

from cadenza.store.engines import postgres_engines, sqlite_engines
from cadenza.store.sqlite import SqliteStore
from cadenza.store.statements import Executor, Statement, Values

WAIT_S = 10.0
REVISIONS = ("0001", "0002", "0003")  # the files of migrations/versions, oldest first; a test compares them
MIGRATION_LOCK = 0x6361_6465_6E7A_61  # the advisory lock of whoever migrates a Postgres
MIGRATION_LOCK_WAIT_S = 60
POSTGRES_NO_TABLE = "42P01"
POSTGRES_BAD_VALUE = "22"  # the class of its data exceptions

T = TypeVar("T")


class StoreUnavailable(Exception):
    """The store cannot be opened, is locked or went away. Its sentence says what to do."""


class StoreRefused(Exception):
    """A constraint or trigger of the store said no; nothing of the transaction stands."""


class SchemaState(msgspec.Struct, frozen=True):
    """How the schema that is there compares with the one that this program needs."""

    state: Literal["current", "behind", "empty", "ahead"]
    revision: str | None
    head: str


class Opening:
    """Whether a connection has come to be open."""

    is_open = False


class Database:
    """A store by its address. Opens nothing until it is used; `close` ends what was opened."""

    def __init__(self, url: str, wait_s: float = WAIT_S) -> None:
        address = _parse(url)
        self.path = Path(address.database or "") if address.drivername == "sqlite" else None
        self._sqlite: SqliteStore | None = None
        if self.path is None:
            self._where = f"postgresql://{address.host or ''}/{address.database or ''}"
            self._reader, self._writer = postgres_engines(address, wait_s)
        else:
            self._where = str(self.path)
            self._reader, self._writer = sqlite_engines(self.path, wait_s)
            self._sqlite = SqliteStore(self.path, wait_s)

    @property
    def is_sqlite(self) -> bool:
        return self.path is not None

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """No transaction: each statement sees what was committed before it, by any process."""
        with self._mapped() as opening:
            async with self._reader.connect() as conn:
                opening.is_open = True
                yield conn

    @contextlib.asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """A transaction; on SQLite it holds the write lock from the start."""
        with self._mapped() as opening:
            async with self._writer.begin() as conn:
                opening.is_open = True
                yield conn

    async def transact(self, work: Callable[[Executor], T], *, is_brief: bool = False) -> T:
        """A transaction of many statements, run as one piece. Once begun it ends, even if the caller is cancelled."""
        if self._sqlite:
            with self._mapped() as opening:
                opening.is_open = True  # an OSError is the work's own
                return await self._sqlite.transact(work, is_brief=is_brief)
        async with self.write() as conn:
            return await conn.run_sync(work)

    async def row(self, statement: Statement, values: Values) -> tuple[Any, ...] | None:
        """One row, as it is committed now. On SQLite without a change of thread."""
        if self._sqlite:
            try:
                return self._sqlite.row(statement, values)
            except sqlite3.Error:
                pass  # once more, where its failure becomes ours
        async with self.read() as conn:
            found = (await conn.execute(statement.core, values)).first()
            return None if found is None else tuple(found)

    async def ping(self) -> None:
        async with self.read() as conn:
            await conn.execute(text("PRAGMA schema_version" if self.is_sqlite else "SELECT 1"))

    async def close(self) -> None:
        if self._sqlite:
            await self._sqlite.close()
        await self._reader.dispose()
        await self._writer.dispose()

    @contextlib.contextmanager
    def _mapped(self) -> Iterator["Opening"]:
        """The drivers' errors become ours; an OSError is theirs only while the connection is not open."""
        opening = Opening()
        try:
            yield opening
        except sqlite3.IntegrityError as error:
            raise StoreRefused(f"The store refused a change: {error}.") from None
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.Error as error:
            raise self._unavailable(str(error).partition(":")[0]) from None
        except IntegrityError as error:
            raise StoreRefused(f"The store refused a change: {_first_line(error)}.") from None
        except (ProgrammingError, DataError, NotSupportedError) as error:
            if getattr(error.orig, "sqlstate", None) != POSTGRES_NO_TABLE:
                raise
            raise self._unavailable("no such table") from None
        except (DBAPIError, PoolTimeout) as error:
            if _is_bad_value(error):
                raise StoreRefused(f"The store refused a value: {_reason(error)}.") from None
            raise self._unavailable(_reason(error)) from None
        except OSError as error:
            if opening.is_open:
                raise
            raise self._unavailable(error.strerror or "no connection") from None

    def _unavailable(self, reason: str) -> StoreUnavailable:
        if reason == "no such table":
            todo = "Its schema is not there yet: run 'cadenza migrate'."
        elif "lock" in reason:
            todo = "Another process holds a lock on it: try again, or end that process."
        elif not self.is_sqlite:
            todo = "Check that Postgres runs and that the address names the right host, user and database."
        elif "not a database" in reason:
            todo = "Some other file stands in its place: move it away, or give the store another path."
        else:
            todo = "Check that its folder can be written by this user and that the disk has space."
        return StoreUnavailable(f"The store {self._where} cannot be used: {reason}. {todo}")


async def migrate(db: Database) -> str:
    """Bring the schema to head and return the revision. Processes that start at once take turns."""
    found = await schema_state(db)
    if found.state == "ahead":
        raise StoreUnavailable(
            f"The store's schema is at revision {found.revision}, which this program does not know "
            f"(it knows up to {found.head}): run the newer program that made it."
        )
    if found.state != "current":
        await _upgrade(db)
    return found.head


async def _upgrade(db: Database) -> None:
    from cadenza.store.migrations import upgrade  # noqa: PLC0415 - slow to load, and most starts need none of it

    async with db.write() as conn:
        if not db.is_sqlite:
            await conn.execute(text(f"SET LOCAL lock_timeout = '{MIGRATION_LOCK_WAIT_S}s'"))
            await conn.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
            await conn.execute(text(f"SET LOCAL lock_timeout = '{round(WAIT_S)}s'"))
        await conn.run_sync(upgrade)


async def schema_state(db: Database) -> SchemaState:
    head = REVISIONS[-1]
    async with db.read() as conn:
        revision = await conn.run_sync(_revision)
    if revision is None:
        return SchemaState("empty", None, head)
    if revision == head:
        return SchemaState("current", revision, head)
    return SchemaState("behind" if revision in REVISIONS else "ahead", revision, head)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision = connection.execute(select(column("version_num")).select_from(table("alembic_version"))).scalar()
    return None if revision is None else str(revision)


def _parse(url: str) -> URL:
    try:
        address = make_url(url)
    except ArgumentError:
        address = URL.create("unknown")
    if address.drivername in {"postgresql", "postgres"}:
        return address
    if address.drivername == "sqlite" and address.database not in {None, "", ":memory:"}:
        return address
    raise StoreUnavailable(
        "The store's address is not understood: write it like sqlite:///./data/cadenza.db "
        "or postgresql://user:password@host/database."
    )


def _is_bad_value(error: DBAPIError | PoolTimeout) -> bool:
    """A fault of ours: the driver finds it and calls it one of its interface, or Postgres does."""
    cause = getattr(error, "orig", None)
    sqlstate = getattr(cause, "sqlstate", None) or ""
    return isinstance(getattr(cause, "__cause__", None), ValueError) or sqlstate.startswith(POSTGRES_BAD_VALUE)


def _reason(error: DBAPIError | PoolTimeout) -> str:
    """The driver's own words up to the first colon: what comes after it may quote a value."""
    if isinstance(error, PoolTimeout):
        return "all its connections were busy for too long"
    return _first_line(error).partition(":")[0]


def _first_line(error: DBAPIError) -> str:
    """What is wrong; Postgres quotes the offending values on the lines below it."""
    return str(error.orig).partition("\n")[0]
