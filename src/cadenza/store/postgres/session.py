"""A connection to Postgres with bounded statements, and the transaction that synchronous work sees.

Each statement sets a deadline, and the pool closes a connection that passed it. A timer for each statement would cost
10 µs of the 70 that a small one takes.
"""

import asyncio
import contextlib
from collections.abc import Sequence

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy.util import await_

from cadenza.store.postgres.connect import Connection
from cadenza.store.postgres.errors import DRIVER_ERRORS, CommitLost, ConnectionLost, has_failed
from cadenza.store.postgres.statements import for_postgres
from cadenza.store.postgres.watch import ANNOUNCE
from cadenza.store.statements import SelectByIds, Statement, Values
from cadenza.store.store import Row

LOST = (asyncpg.ConnectionDoesNotExistError, OSError)


class Session:
    """One connection, for as long as it lives."""

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
        """Whether it can be used for something else."""
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
        """Asyncpg sends all values before it waits for an answer: one round trip."""
        text, pick = for_postgres(statement)
        self._deadline_s = self._now_s() + timeout_s
        try:
            await self._connection.executemany(text, map(pick, values))
        except LOST as error:
            raise self._lost(error) from None

    async def run(self, sql: str, *values: object, timeout_s: float) -> str:
        """Run SQL as it is written and return Postgres's word for what it did."""
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
    """What `work` sees: its statements wait without `await`, because `work` runs in a greenlet."""

    __slots__ = ("_session", "_statement_s", "statements")
    combines_changes = True

    def __init__(self, session: Session, statement_s: float) -> None:
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

    def announce(self) -> None:
        self.statements += 1
        await_(self._session.run(ANNOUNCE, timeout_s=self._statement_s))

    def overwrite_deleted(self) -> None:
        """Nothing to do: Postgres has no file that we could overwrite."""
