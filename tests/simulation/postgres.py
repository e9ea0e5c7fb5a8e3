"""A server that processes of several machines share: the real PostgresStore runs on top, with the rows in SQLite.

The store's pool, deadlines, translated errors and listener are the real ones. In place of SQL, a message carries what
is to be read, or the work of a whole transaction, which happens at the moment when its COMMIT arrives. The server knows
accounts that a stranger has locked, lock timeouts, sessions that are idle in a transaction, lost connections, a full
disk and failovers. What transactions do to each other between their statements is tested on a real Postgres
(tests/store/test_interleaved.py).
"""

import asyncio
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from random import Random
from typing import Any, TypeVar

import asyncpg  # type: ignore[import-untyped]

from cadenza.ledger import day_sums, rows
from cadenza.parts.postgres.connection import PID, PostgresAddress, PostgresBounds
from cadenza.parts.postgres.errors import CommitLost, ConnectionLost
from cadenza.parts.postgres.session import LOST, PostgresSession
from cadenza.parts.postgres.store import PostgresStore
from cadenza.store.sqlite.store import SqliteTransaction
from cadenza.store.statements import SelectByIds, Statement, Values
from cadenza.store.store import Row, Transaction
from tests.simulation.database import Database, changed_table
from tests.simulation.network import Link, Wire
from tests.simulation.scheduler import Scheduler

BOUNDS = PostgresBounds()
URL = "postgresql://simulated/cadenza"
WORK_LEAST_S, WORK_SPREAD_S = 0.00005, 0.00035  # what a statement takes
STATEMENTS, STATEMENTS_COUNT = "the statements of a transaction, before its COMMIT", 5
COMMIT_LEAST_S, COMMIT_SPREAD_S = 0.0003, 0.0027
LOCK_TIMEOUT = re.compile(r"SET LOCAL lock_timeout = (\d+)")
ALIVE = re.search(r"alive AS \((.*) FOR KEY SHARE", str(rows.WRITE.core), re.DOTALL)
T = TypeVar("T")
Work = Callable[[Any], Any]
Answer = Callable[[Any, Exception | None], None]


class RowLocked(Exception):
    """A stranger has locked an account. The transaction is rolled back, and runs again once it is free."""


class ServerTransaction(SqliteTransaction):
    """Runs the statements that the product has for Postgres, as far as SQLite can."""

    locked: Mapping[str, int] = {}
    combines_changes: bool = True

    def row(self, statement: Statement, values: Values) -> Row | None:
        if statement is rows.WRITE:
            return self._write(values)
        self._lock(statement, values.values())
        return super().row(statement, values)

    def rows(self, statement: Statement, values: Values) -> list[Row]:
        self._lock(statement, values.values())
        text, given = statement.sqlite_text, [*statement.sqlite_values(values)]
        for several in [one for one in given if isinstance(one, list)]:  # SQLite has no arrays
            text = text.replace("= any(?)", f"IN ({', '.join('?' * len(several))})", 1)
            given = [part for one in given for part in (one if one is several else [one])]
        return self._cursor.execute(text, given).fetchall()

    def rows_by_ids(self, select: SelectByIds, ids: Sequence[str], values: Values) -> list[Row]:
        if skips_locked(select.one):
            ids = [one for one in ids if one not in self.locked]
        return super().rows_by_ids(select, ids, values)

    def change(self, statement: Statement, values: Values) -> int:
        self._lock(statement, values.values())
        return super().change(statement, values)

    def change_each(self, statement: Statement, values: Sequence[Values]) -> None:
        for one in values:
            self.change(statement, one)

    def insert_rows(self, statement: Statement, rows: Sequence[Row]) -> None:
        self.change_each(statement, [dict(zip(statement.columns or (), row, strict=True)) for row in rows])

    def _lock(self, statement: Statement, values: Any) -> None:
        if self.locked and locks_accounts(statement) and not self.locked.keys().isdisjoint(values):
            raise RowLocked

    def _write(self, values: Values) -> Row:
        """The one statement that SQLite does not know: it makes all changes of a batch."""
        assert ALIVE
        [[is_alive]] = self._cursor.execute(f"SELECT EXISTS ({ALIVE[1]})", {"process": values["process"]}).fetchall()
        for prefix, statement in (("e", rows.ADD_ENTRY), ("u", rows.ADD_USAGE), ("s", day_sums.ADD), ("a", rows.MOVE)):
            super().change_each(statement, _of_arrays(prefix, values))
        reserves = [(rows.CHANGE_RESERVE, one) for one in _of_arrays("r", values)]
        reserves += [(rows.DROP_RESERVE, one) for one in _of_arrays("d", values)]
        count = sum(
            super(ServerTransaction, self).change(statement, {**one, "of": values["process"]})
            for statement, one in reserves
        )
        return count, bool(is_alive)


def _of_arrays(prefix: str, values: Values) -> list[dict[str, Any]]:
    """The rows that are given as an array for each column."""
    columns = _columns(prefix, tuple(values))
    return [
        dict(zip(columns, row, strict=True)) for row in zip(*(values[name] for name in columns.values()), strict=True)
    ]


@cache
def _columns(prefix: str, names: tuple[str, ...]) -> dict[str, str]:
    return {name[2:]: name for name in names if name.startswith(f"{prefix}_")}


@cache
def locks_accounts(statement: Statement) -> bool:
    """Whether a statement waits for a lock on the accounts that it names."""
    is_lock = getattr(statement.core, "_for_update_arg", None) is not None
    return changed_table(statement.sqlite_text) == "accounts" or (is_lock and "FROM accounts" in statement.sqlite_text)


@cache
def skips_locked(statement: Statement) -> bool:
    lock = getattr(statement.core, "_for_update_arg", None)
    return lock is not None and bool(lock.skip_locked)


class PostgresServer:
    """One server, with one database."""

    def __init__(self, scheduler: Scheduler, database: Database, random: Random) -> None:
        self.scheduler = scheduler
        self.database = database
        self.random = random
        self.is_down = False
        self.is_full = False
        self.backends: dict[int, Backend] = {}
        self._locked: dict[str, int] = {}  # accounts, and how many strangers have locked each
        self._waiting: list[Callable[[], None]] = []
        self._last_pid = 0

    async def connect(
        self, link: Link, address: PostgresAddress, bounds: PostgresBounds, *, keeps_statements: bool = True
    ) -> "SimulatedConnection":
        """Connect as asyncpg does. OSError if the server is down."""
        connection = SimulatedConnection(self, link)
        await connection.open()
        return connection

    def new_backend(self, wire: Wire) -> "Backend":
        self._last_pid += 1
        backend = self.backends[self._last_pid] = Backend(self, self._last_pid, wire)
        return backend

    def work_s(self, statements: int = 1) -> float:
        return statements * (WORK_LEAST_S + WORK_SPREAD_S * self.random.random())

    def commit_s(self) -> float:
        return COMMIT_LEAST_S + COMMIT_SPREAD_S * self.random.random()

    def lock(self, account_id: str) -> None:
        """A stranger locks an account."""
        self._locked[account_id] = self._locked.get(account_id, 0) + 1

    def unlock(self, account_id: str) -> None:
        self._locked[account_id] -= 1
        if not self._locked[account_id]:
            del self._locked[account_id]
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            self.scheduler.after(self.work_s(), then)

    def when_unlocked(self, then: Callable[[], None]) -> None:
        self._waiting.append(then)

    def transact(self, work: Work) -> Any:
        """Run a whole transaction. The watchers of all processes get what it announced."""
        begin = partial(ServerTransaction, locked=self._locked)
        try:
            done, tx = self.database.transact(work, begin, self._check_disk)
        except sqlite3.IntegrityError as error:
            raise asyncpg.IntegrityConstraintViolationError(str(error)) from None
        if tx.is_announced:
            for backend in list(self.backends.values()):
                backend.notify()
        return done

    def _check_disk(self) -> None:
        if self.is_full:
            raise asyncpg.DiskFullError("could not extend file")

    def go_down(self) -> None:
        """End every session. What is committed stays."""
        self.is_down = True
        for backend in list(self.backends.values()):
            backend.wire.break_off()


class Backend:
    """The session of one connection on the server."""

    def __init__(self, server: PostgresServer, pid: int, wire: Wire) -> None:
        self.pid = pid
        self.wire = wire
        self.on_notify: Callable[[], object] | None = None
        self._server = server
        self._commands = 0  # to tell whether a timer is about the command that runs now
        self._lock_s = BOUNDS.lock_s
        self._is_lost = False

    def lost(self) -> None:
        """The client is gone, and whatever it did not commit."""
        self._is_lost = True
        self._server.backends.pop(self.pid, None)

    def notify(self) -> None:
        if self.on_notify:
            self.wire.to_client(self.on_notify)

    def control(self, text: str, answer: Answer) -> None:
        self._commands += 1
        if text.startswith("BEGIN"):
            found = LOCK_TIMEOUT.search(text)
            self._lock_s = int(found[1]) / 1000 if found else BOUNDS.lock_s
        elif text == STATEMENTS:
            self._server.scheduler.after(BOUNDS.idle_in_transaction_s, self._end_if_idle, self._commands)
        self.wire.to_client(answer, text.partition(" ")[0], None)

    def read(self, work: Work, answer: Answer) -> None:
        self._commands += 1
        self.wire.to_client(answer, self._server.database.read(work, ServerTransaction), None)

    def transact(self, work: Work, answer: Answer) -> None:
        """Run the work of a transaction and commit it. If it meets a lock, it waits for that and begins again."""
        self._commands += 1
        self._try(self._commands, work, answer, lock_s=self._lock_s)

    def _try(self, number: int, work: Work, answer: Answer, lock_s: float | None = None) -> None:
        if number != self._commands or self._is_lost:
            return
        try:
            done = self._server.transact(work)
        except RowLocked:
            self._server.when_unlocked(lambda: self._try(number, work, answer))
            if lock_s is not None:
                self._server.scheduler.after(lock_s, self._give_up_lock, number, answer)
            return
        except Exception as error:  # noqa: BLE001 the caller gets it
            self.wire.to_client(answer, None, error)
        else:
            self.wire.to_client(answer, done, None)
        self._commands += 1

    def _give_up_lock(self, number: int, answer: Answer) -> None:
        if number == self._commands and not self._is_lost:
            self._commands += 1
            error = asyncpg.LockNotAvailableError("canceling statement due to lock timeout")
            self.wire.to_client(answer, None, error)

    def _end_if_idle(self, number: int) -> None:
        """End a session that waits in a transaction for its client."""
        if number == self._commands and not self._is_lost:
            self.wire.break_off()


class SimulatedConnection:
    """A connection as the store knows it from asyncpg. Its messages carry work instead of SQL."""

    def __init__(self, server: PostgresServer, link: Link) -> None:
        self.server = server
        self._link = link
        self._is_closed = False
        self._in_transaction = False
        self._waiting: dict[Any, None] = {}  # the futures of commands without an answer, in their order
        self._on_end: list[Callable[[object], None]] = []
        self._backend: Backend | None = None
        self._wire = Wire(link, self._lost, self._lost_there)

    async def open(self) -> None:
        opened = self._link.loop.create_future()
        self._waiting[opened] = None

        def accept() -> None:
            if self.server.is_down:
                self._wire.to_client(self._answered, opened, None, ConnectionRefusedError(111, "refused"))
            else:
                self._backend = self.server.new_backend(self._wire)
                self._wire.to_client(self._answered, opened, None, None)

        self._wire.to_server(0.0, accept)
        try:
            await opened
        except BaseException:
            self.terminate()
            raise

    async def fetchval(self, text: str, *, timeout: float) -> int:  # noqa: ASYNC109 as asyncpg has it
        assert text == PID
        await self.execute("SELECT 1")
        return self.get_server_pid()

    def get_server_pid(self) -> int:
        assert self._backend
        return self._backend.pid

    async def execute(self, text: str, *, timeout: float | None = None) -> str:  # noqa: ASYNC109
        done: str = await self._ask(self.server.work_s(STATEMENTS_COUNT if text == STATEMENTS else 1), "control", text)
        if done in {"BEGIN", "ROLLBACK"}:
            self._in_transaction = done == "BEGIN"
        return done

    async def read(self, work: Work) -> Any:
        return await self._ask(self.server.work_s(), "read", work)

    async def commit(self, work: Work, work_s: float) -> Any:
        try:
            return await self._ask(work_s, "transact", lambda tx: self._link.loop.inside(lambda: work(tx)))
        finally:
            self._in_transaction = False

    def add_termination_listener(self, listener: Callable[[object], None]) -> None:
        self._on_end.append(listener)

    async def add_listener(self, channel: str, listener: Callable[..., None]) -> None:
        await self.execute("LISTEN")
        assert self._backend
        self._backend.on_notify = lambda: self._link.loop.call_soon(listener, self, 0, channel, "")

    def is_closed(self) -> bool:
        return self._is_closed

    def is_in_transaction(self) -> bool:
        return self._in_transaction

    def terminate(self) -> None:
        if not self._is_closed:
            self._wire.break_off(here=False)
            self._lost()

    async def close(self, *, timeout: float) -> None:  # noqa: ASYNC109
        self.terminate()

    def _ask(self, work_s: float, kind: str, message: Any) -> "asyncio.Future[Any]":
        if self._is_closed:
            raise asyncpg.InterfaceError("connection is closed")
        answered = self._link.loop.create_future()
        self._waiting[answered] = None
        self._wire.to_server(work_s, getattr(self._backend, kind), message, partial(self._answered, answered))
        return answered

    def _answered(self, future: Any, value: Any, error: Exception | None) -> None:
        self._waiting.pop(future, None)
        if future.done() or self._link.loop.is_dead:
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def _lost(self) -> None:
        """This side finds the connection lost."""
        self._is_closed = True
        for future in list(self._waiting):
            self._answered(future, None, asyncpg.ConnectionDoesNotExistError("connection was closed in the middle"))
        for listener in self._on_end:
            listener(self)

    def _lost_there(self) -> None:
        if self._backend:
            self._backend.lost()


class SimulatedSession(PostgresSession):
    """A session that sends work instead of SQL."""

    _connection: SimulatedConnection

    async def row(self, statement: Statement, values: Values, timeout_s: float) -> Row | None:
        found: Row | None = await self._bounded(
            timeout_s, lambda: self._connection.read(lambda tx: tx.row(statement, values))
        )
        return found

    async def rows(self, statement: Statement, values: Values, timeout_s: float) -> list[Row]:
        found: list[Row] = await self._bounded(
            timeout_s, lambda: self._connection.read(lambda tx: tx.rows(statement, values))
        )
        return found

    async def commit_single(self, work: Work, timeout_s: float) -> Any:
        server = self._connection.server
        return await self._bounded(timeout_s, lambda: self._connection.commit(work, server.work_s()))

    async def commit_work(self, work: Work, timeout_s: float) -> Any:
        """CommitLost if it is not known whether the transaction was committed."""
        connection, server = self._connection, self._connection.server
        try:
            return await self._bounded(timeout_s, lambda: connection.commit(work, server.commit_s()))
        except (ConnectionLost, asyncpg.InterfaceError) as error:
            raise CommitLost(str(error).partition("\n")[0]) from None

    async def _bounded(self, timeout_s: float, ask: Callable[[], Any]) -> Any:
        self._deadline_s = self._now_s() + timeout_s
        try:
            return await ask()
        except LOST as error:
            raise self._lost(error) from None


class SimulatedPostgresStore(PostgresStore):
    """The store as one process sees it."""

    def __init__(self, server: PostgresServer, link: Link) -> None:
        super().__init__(URL, open_connection=partial(server.connect, link))

    async def _open_session(self) -> PostgresSession:
        return SimulatedSession(await self._connect(self._bounds))

    async def _run_transaction(self, session: PostgresSession, work: Callable[[Any], T], begin: str) -> T:
        assert isinstance(session, SimulatedSession)
        await session.run(begin, timeout_s=self._bounds.statement_s)
        await session.run(STATEMENTS, timeout_s=self._bounds.statement_s)
        done: T = await session.commit_work(work, self._bounds.commit_s)
        return done

    async def _run_single(self, session: PostgresSession, work: Callable[[Transaction], T]) -> T:
        assert isinstance(session, SimulatedSession)
        done: T = await session.commit_single(work, self._bounds.statement_s)
        return done
