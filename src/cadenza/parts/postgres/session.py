"""Connections to Postgres with bounded statements, the pool that lends them, and the transaction that `work` sees.

Each statement sets a deadline, and the pool closes a connection that passed it: a timer for each statement would cost
10 µs of the 70 that a small one takes. A connection in doubt is closed, never used again: after a timeout or a
cancellation nobody knows to which statement its next answer belongs. If one connection got no answer, the idle ones are
in doubt too.
"""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy.dialects.postgresql import asyncpg as dialects
from sqlalchemy.util import await_

from cadenza.parts.postgres.connection import Connection
from cadenza.parts.postgres.errors import (
    CONNECTION_LOST,
    DRIVER_ERRORS,
    CommitLost,
    ConnectionLost,
    has_failed,
    is_outdated,
    sqlstate,
)
from cadenza.store.statements import PickValues, SelectByIds, Statement, Values, compile_for, pick_values
from cadenza.store.store import Row

DIALECT = dialects.dialect()  # type: ignore[no-untyped-call]
STATEMENTS_MAX = 1024
CHANNEL = "cadenza"  # of the announcements between processes
ANNOUNCE = f"NOTIFY {CHANNEL}"
CLOSE_S = 1.0
CHECK_EVERY_S = 0.1
LOST = (asyncpg.ConnectionDoesNotExistError, OSError)

T = TypeVar("T")


class PostgresStatement(NamedTuple):
    """The SQL, and a function that orders named values by its placeholders."""

    text: str
    pick: PickValues


@functools.lru_cache(STATEMENTS_MAX)
def for_postgres(statement: Statement) -> PostgresStatement:
    compiled = compile_for(DIALECT, statement.postgres_core, statement.columns)
    return PostgresStatement(str(compiled), pick_values(compiled))


class PostgresSession:
    """One connection. Every statement sets its deadline."""

    __slots__ = ("_connection", "_deadline_s", "_is_late", "_now_s")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._now_s = asyncio.get_running_loop().time
        self._deadline_s = 0.0
        self._is_late = False

    @property
    def is_closed(self) -> bool:
        return bool(self._connection.is_closed())

    @property
    def is_idle(self) -> bool:
        """Whether the pool may lend it again."""
        return not self._connection.is_closed() and not self._connection.is_in_transaction()

    async def row(self, statement: Statement, values: Values, timeout_s: float) -> Row | None:
        text, pick = for_postgres(statement)
        self._deadline_s = self._now_s() + timeout_s
        try:
            found = await self._connection.fetchrow(text, *pick(values))
        except LOST as error:
            raise self._lost(error) from None
        return None if found is None else tuple(found)

    async def rows(self, statement: Statement, values: Values, timeout_s: float) -> list[Row]:
        text, pick = for_postgres(statement)
        self._deadline_s = self._now_s() + timeout_s
        try:
            return list(map(tuple, await self._connection.fetch(text, *pick(values))))
        except LOST as error:
            raise self._lost(error) from None

    async def change(self, statement: Statement, values: Values, timeout_s: float) -> int:
        text, pick = for_postgres(statement)
        count = (await self.run(text, *pick(values), timeout_s=timeout_s)).rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    async def change_each(self, statement: Statement, values: Sequence[Values], timeout_s: float) -> None:
        """One round trip: asyncpg sends all values before it waits for an answer."""
        text, pick = for_postgres(statement)
        self._deadline_s = self._now_s() + timeout_s
        try:
            await self._connection.executemany(text, map(pick, values))
        except LOST as error:
            raise self._lost(error) from None

    async def run(self, sql: str, *values: object, timeout_s: float) -> str:
        """Run SQL as it is written and return the command tag of Postgres, like `UPDATE 1`."""
        self._deadline_s = self._now_s() + timeout_s
        try:
            done: str = await self._connection.execute(sql, *values)
        except LOST as error:
            raise self._lost(error) from None
        return done

    async def commit(self, timeout_s: float) -> None:
        """CommitLost if it is not known whether the transaction was committed."""
        try:
            done = await self.run("COMMIT", timeout_s=timeout_s)
        except DRIVER_ERRORS as error:
            if has_failed(error):
                raise
            raise CommitLost(str(error).partition("\n")[0]) from None
        if done != "COMMIT":
            raise ConnectionLost("the transaction was rolled back")

    async def roll_back(self, timeout_s: float) -> None:
        """Leave no transaction open. If this fails, the connection cannot be used again."""
        if not self.is_closed:
            with contextlib.suppress(*DRIVER_ERRORS):
                await self.run("ROLLBACK", timeout_s=timeout_s)

    def end_if_late(self, now_s: float) -> None:
        if now_s > self._deadline_s:
            self._is_late = True
            self._connection.terminate()

    def end(self) -> None:
        self._connection.terminate()

    async def close(self, timeout_s: float) -> None:
        await self._connection.close(timeout=timeout_s)

    def _lost(self, error: Exception) -> ConnectionLost:
        self._connection.terminate()
        return ConnectionLost("it did not answer in time" if self._is_late else str(error).partition(":")[0])


class PostgresTransaction:
    """The transaction that `work` gets. Its methods block without `await`, because `work` runs in a greenlet."""

    __slots__ = ("_session", "_statement_s", "statements")
    combines_changes = True

    def __init__(self, session: PostgresSession, statement_s: float) -> None:
        self._session = session
        self._statement_s = statement_s
        self.statements = 0

    def row(self, statement: Statement, values: Values) -> Row | None:
        self.statements += 1
        return await_(self._session.row(statement, values, self._statement_s))

    def rows(self, statement: Statement, values: Values) -> list[Row]:
        self.statements += 1
        return await_(self._session.rows(statement, values, self._statement_s))

    def rows_by_ids(self, select: SelectByIds, ids: Sequence[str], values: Values) -> list[Row]:
        return self.rows(select.many, {**values, "ids": ids}) if ids else []

    def change(self, statement: Statement, values: Values) -> int:
        self.statements += 1
        return await_(self._session.change(statement, values, self._statement_s))

    def change_each(self, statement: Statement, values: Sequence[Values]) -> None:
        self.statements += 1
        await_(self._session.change_each(statement, values, self._statement_s))

    def insert_rows(self, statement: Statement, rows: Sequence[Row]) -> None:
        self.change_each(statement, [dict(zip(statement.columns or (), row, strict=True)) for row in rows])

    def announce(self) -> None:
        self.statements += 1
        await_(self._session.run(ANNOUNCE, timeout_s=self._statement_s))

    def overwrite_deleted(self) -> None:
        """Nothing to do: Postgres has no file that we could overwrite."""


class PoolBusy(Exception):
    """No connection was given back in time."""


class Pool:
    """At most `connections_max` connections, lent first come, first served. Closes those whose deadline has passed."""

    def __init__(self, open_session: Callable[[], Awaitable[PostgresSession]], connections_max: int) -> None:
        self._open_session = open_session
        self._places = asyncio.Semaphore(connections_max)
        self._idle: list[PostgresSession] = []
        self._busy: set[PostgresSession] = set()
        self._expired: set[PostgresSession] = set()  # busy ones that are closed when they are given back
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, use: Callable[[PostgresSession], Awaitable[T]], wait_s: float) -> T:
        """Run `use` with a connection. PoolBusy if none is free within `wait_s`."""
        session = await self._take(wait_s)
        try:
            return await use(session)
        except Exception as error:
            if _casts_doubt(error):
                self.expire()
            raise
        except BaseException:
            self._expired.add(session)
            raise
        finally:
            self._release(session)

    def expire(self) -> None:
        """Close the idle connections now, and the busy ones as soon as they are given back."""
        self._expired |= self._busy
        while self._idle:
            self._idle.pop().end()

    async def close(self) -> None:
        """Close all connections. The pool can be used again."""
        closing = [session.close(CLOSE_S) for session in self._idle]
        self._idle.clear()
        self.expire()
        await asyncio.gather(*closing, return_exceptions=True)

    async def _take(self, wait_s: float) -> PostgresSession:
        if self._places.locked():
            try:
                async with asyncio.timeout(wait_s):  # not `wait_for`: Python 3.11 loses a cancellation in it
                    await self._places.acquire()
            except TimeoutError:
                raise PoolBusy from None
        else:
            await self._places.acquire()
        try:
            session = self._find_idle() or await self._open_session()
        except BaseException:
            self._places.release()
            raise
        self._busy.add(session)
        if self._timer is None:
            self._check_later()
        return session

    def _find_idle(self) -> PostgresSession | None:
        while self._idle:
            session = self._idle.pop()
            if not session.is_closed:
                return session
        return None

    def _release(self, session: PostgresSession) -> None:
        self._busy.discard(session)
        if session.is_idle and session not in self._expired:
            self._idle.append(session)
        else:
            self._expired.discard(session)
            session.end()
        self._places.release()

    def _check_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(CHECK_EVERY_S, self._end_late, loop.time() + CHECK_EVERY_S)

    def _end_late(self, due_s: float) -> None:
        """If this process itself stalled, answers may have arrived that it has not read yet: check again later."""
        now_s = asyncio.get_running_loop().time()
        if now_s < due_s + CHECK_EVERY_S:
            for session in self._busy:
                session.end_if_late(now_s)
        if self._busy:
            self._check_later()
        else:
            self._timer = None


def _casts_doubt(error: Exception) -> bool:
    """Whether an error of one connection makes all suspect: lost, demoted to read-only, or outdated by a migration."""
    if isinstance(error, ConnectionLost | asyncpg.InternalClientError) or is_outdated(error):
        return True
    if isinstance(error, asyncpg.InterfaceError):
        return not isinstance(error, ValueError)  # which is about a value
    return sqlstate(error).startswith(CONNECTION_LOST)
