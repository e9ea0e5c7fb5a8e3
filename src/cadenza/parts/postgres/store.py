"""A store in Postgres, for processes on several machines, with asyncpg.

Reads run without a transaction, so each sees the newest committed state. Every wait for a connection, a lock or an
answer is bounded (`PostgresBounds`). Work that met a deadlock, or a schema that a migration changed, runs again.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from sqlalchemy import text
from sqlalchemy.util import await_, greenlet_spawn

from cadenza.parts.postgres.connection import (
    Connection,
    PostgresAddress,
    PostgresBounds,
    SessionShared,
    check_session,
    connect,
    set_up,
)
from cadenza.parts.postgres.errors import CONNECT_ERRORS, DRIVER_ERRORS, Translator, can_be_retried
from cadenza.parts.postgres.session import (
    CHANNEL,
    CLOSE_S,
    DIALECT,
    Pool,
    PoolBusy,
    PostgresSession,
    PostgresTransaction,
)
from cadenza.store.live_processes import PROCESSES, LiveProcess, find_live, refuse_older
from cadenza.store.migrations import find_steps
from cadenza.store.report_turns import REPORTS_MAX, ReportTurns
from cadenza.store.statements import Statement, Values
from cadenza.store.store import Row, StoreUnavailable, Transaction

MIGRATION_LOCK = 0x6361_6465_6E7A_61  # the advisory lock that a migration holds
BEGIN_MIGRATION = (  # a migration waits longer for another one than for a table: transactions queue behind it
    f"BEGIN; SET LOCAL lock_timeout = '60s'; SELECT pg_advisory_xact_lock({MIGRATION_LOCK});"
    " SET LOCAL lock_timeout = '10s'"
)
MIGRATION_S = 3600.0
MIGRATION_TRIES = 3
NO_SESSION = "it is a pooler in transaction mode, and Cadenza needs a session"
SESSION_ADVICE = "Connect to Postgres directly, or use session mode."
PING = Statement(text("SELECT 1"))
TEST_EVERY_S = 1.0  # whether the connection that listens still works
TEST_S = 1.0
RECONNECT_PAUSE_S = 0.25

T = TypeVar("T")
Listen = Callable[[Connection], Awaitable[None]]
Connect = Callable[[Listen], Awaitable[Connection]]


class PostgresStore:
    """Two pools of connections to one database: one for reports, and one for everything else."""

    is_shared_by_machines = True
    writes_in_parallel = True
    write_advice = "Check that Postgres runs, can be reached and is not read-only."
    path = None
    process_locks = None

    def __init__(
        self,
        url: str,
        bounds: PostgresBounds | None = None,
        open_connection: Callable[..., Awaitable[Connection]] = connect,
    ) -> None:
        self._open_connection = open_connection
        self._address = PostgresAddress(url)
        self._bounds = bounds or PostgresBounds()
        self._errors = Translator(self._address.where, self._bounds.connections_max + REPORTS_MAX)
        self._pool = Pool(self._open_session, self._bounds.connections_max)
        self._report_pool = Pool(self._open_session, REPORTS_MAX)
        self._turns = ReportTurns()
        self._is_checked = False  # that there is no pooler in transaction mode

    async def row(self, statement: Statement, values: Values) -> Row | None:
        read_s = self._bounds.read_s
        return await self._run(lambda session: session.row(statement, values, read_s), read_s)

    def change_mark(self) -> object:
        return None

    async def rows(self, statement: Statement, values: Values) -> list[Row]:
        rows_s = self._bounds.rows_s
        return await self._run(lambda session: session.rows(statement, values, rows_s), self._bounds.read_s)

    async def report(self, statement: Statement, values: Values, account_id: str = "") -> list[Row]:
        async def read(session: PostgresSession) -> list[Row]:
            try:
                return await session.rows(statement, values, self._bounds.long_read_s)
            except asyncio.CancelledError:
                with contextlib.suppress(*CONNECT_ERRORS):
                    await session.close(CLOSE_S)  # asks Postgres to end the statement, which `terminate` does not
                raise

        async with self._turns.turn(account_id):
            return await self._run(read, self._bounds.read_s, self._report_pool)

    async def transact(
        self,
        work: Callable[[Transaction], T],
        *,
        is_brief: bool = False,  # noqa: ARG002 for SQLite
        is_single: bool = False,
        lock_s: float | None = None,
    ) -> T:
        begin = "BEGIN" if lock_s is None else f"BEGIN; SET LOCAL lock_timeout = {round(lock_s * 1000)}"
        if is_single:
            return await self._run(lambda session: self._run_single(session, work), self._bounds.turn_s)
        return await self._run(lambda session: self._run_transaction(session, work, begin), self._bounds.turn_s)

    @contextlib.asynccontextmanager
    async def watch(self, wake: Callable[[], None]) -> AsyncIterator[None]:
        listener = Listener(lambda listen: self._connect(self._bounds, listen), wake)
        await listener.connect()
        keeping = asyncio.create_task(listener.keep_connected())
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
            listener.disconnect()

    async def ping(self) -> None:
        await self.row(PING, {})

    async def find_damage(self) -> str | None:
        return None

    async def empty_log(self) -> bool:
        return True

    async def close(self) -> None:
        await self._pool.close()
        await self._report_pool.close()

    async def upgrade(self) -> Path | None:
        patient = msgspec.structs.replace(self._bounds, long_read_s=MIGRATION_S, idle_in_transaction_s=MIGRATION_S)
        tries_left = MIGRATION_TRIES
        while True:
            tries_left -= 1
            session = PostgresSession(await self._connect(patient))
            try:
                await self._run_transaction(session, partial(self._migrate, session), BEGIN_MIGRATION)
            except DRIVER_ERRORS as error:  # a deadlock with a running process undid the whole migration
                if not (tries_left and can_be_retried(error)):
                    raise self._errors.translate(error) from None
            else:
                return None
            finally:
                with contextlib.suppress(*CONNECT_ERRORS):
                    await session.close(CLOSE_S)

    def _migrate(self, session: PostgresSession, tx: PostgresTransaction) -> None:
        steps = find_steps(tx)
        if steps.found and steps.needed:
            await_(self._refuse_older(session, steps.needed))
        steps.run(tx, DIALECT)

    async def _refuse_older(self, session: PostgresSession, needed: str) -> None:
        """StoreUnavailable if a program older than `needed` runs on the store. None can register before the commit."""

        async def read() -> list[Row]:
            rows = await session.rows(PROCESSES, {}, MIGRATION_S)
            return [row for row in rows if LiveProcess(*row).revision < needed]

        async def lock() -> None:
            await session.run("LOCK TABLE processes IN SHARE MODE", timeout_s=MIGRATION_S)

        refuse_older(await find_live(read, lock), needed)

    async def _run(self, use: Callable[[PostgresSession], Awaitable[T]], wait_s: float, pool: Pool | None = None) -> T:
        """Run `use` with a connection of a pool, again if that can help, and translate the driver's errors."""
        pool = pool or self._pool
        try:
            try:
                return await pool.run(use, wait_s)
            except DRIVER_ERRORS as error:
                if not can_be_retried(error):
                    raise
            return await pool.run(use, wait_s)
        except PoolBusy:
            raise self._errors.unavailable("all its connections were busy for too long") from None
        except DRIVER_ERRORS as error:
            raise self._errors.translate(error) from None

    async def _run_transaction(
        self, session: PostgresSession, work: Callable[[PostgresTransaction], T], begin: str
    ) -> T:
        statement_s = self._bounds.statement_s
        await session.run(begin, timeout_s=statement_s)
        try:
            done = await greenlet_spawn(work, PostgresTransaction(session, statement_s))
        except Exception:
            await session.roll_back(statement_s)
            raise
        await session.commit(self._bounds.commit_s)
        return done

    async def _run_single(self, session: PostgresSession, work: Callable[[Transaction], T]) -> T:
        tx = PostgresTransaction(session, self._bounds.statement_s)
        done = await greenlet_spawn(work, tx)
        assert tx.statements <= 1, "more than one statement, and no transaction around them"
        return done

    async def _open_session(self) -> PostgresSession:
        return PostgresSession(await self._connect(self._bounds))

    async def _connect(self, bounds: PostgresBounds, listen: Listen | None = None) -> Connection:
        """Open a connection, ready for use, or raise StoreUnavailable."""
        if not self._is_checked:
            bounds = msgspec.structs.replace(bounds, connect_s=max(bounds.connect_s, bounds.first_connect_s))
        try:
            connection = await self._open_connection(self._address, bounds)
            try:
                await self._prepare(connection, bounds)
                if listen:
                    async with asyncio.timeout(bounds.connect_s):
                        await listen(connection)
            except BaseException:
                connection.terminate()
                raise
        except SessionShared:
            raise self._errors.unavailable(NO_SESSION, SESSION_ADVICE) from None
        except CONNECT_ERRORS as error:
            raise self._errors.translate_connecting(error) from None
        return connection

    async def _prepare(self, connection: Connection, bounds: PostgresBounds) -> None:
        if not self._is_checked:
            another = partial(self._open_connection, self._address, bounds, keeps_statements=False)
            await check_session(connection, another, bounds.connect_s)
            self._is_checked = True
        await set_up(connection, bounds)


class Listener:
    """Keeps a connection that listens for announcements.

    It is tested every second, because a connection that was lost silently would miss announcements. After it was lost
    and opened again, `wake` is called, because announcements may have been missed.
    """

    def __init__(self, connect: Connect, wake: Callable[[], None]) -> None:
        self._connect = connect
        self._wake = wake
        self._connection: Connection | None = None
        self._lost = asyncio.Event()

    async def connect(self) -> None:
        self._connection = await self._connect(self._listen)

    async def _listen(self, connection: Connection) -> None:
        self._lost.clear()
        connection.add_termination_listener(lambda _: self._lost.set())
        await connection.add_listener(CHANNEL, lambda *_: self._wake())

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def keep_connected(self) -> None:
        while True:
            await self._wait_until_lost()
            self.disconnect()
            await self._connect_again()
            self._wake()

    async def _wait_until_lost(self) -> None:
        while not self._lost.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TEST_EVERY_S):  # not `wait_for`: Python 3.11 loses a cancellation in it
                    await self._lost.wait()
                return
            try:
                async with asyncio.timeout(TEST_S):
                    assert self._connection
                    await self._connection.execute("SELECT 1")
            except CONNECT_ERRORS:
                return

    async def _connect_again(self) -> None:
        while True:
            try:
                await self.connect()
            except (StoreUnavailable, *CONNECT_ERRORS):
                await asyncio.sleep(RECONNECT_PAUSE_S)
            else:
                return
