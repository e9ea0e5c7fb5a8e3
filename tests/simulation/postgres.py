"""A simulated Postgres server, and its connections as asyncpg has them: the real PostgresStore runs on top.

The server runs each statement on the model of its tables (database.py). It knows lock timeouts, sessions that are idle
in a transaction, lost connections, a full disk, and failovers.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from cadenza.parts.postgres.connection import PID, PostgresAddress, PostgresBounds
from tests.simulation.database import Deadlock, ModelDatabase, ModelSession, Refused, Running, StatementResult
from tests.simulation.network import Link, Wire
from tests.simulation.scheduler import Scheduler

BOUNDS = PostgresBounds()
WORK_LEAST_S, WORK_SPREAD_S = 0.00005, 0.00035  # what a statement takes
COMMIT_LEAST_S, COMMIT_SPREAD_S = 0.0003, 0.0027
LOCK_TIMEOUT = re.compile(r"SET LOCAL lock_timeout = (\d+)")
Answer = tuple[Callable[[Any, Any, Exception | None], None], Any]  # what is called with its first argument


class PostgresServer:
    """One server, with the tables of one database."""

    def __init__(self, scheduler: Scheduler, database: ModelDatabase, random: Random) -> None:
        self.scheduler = scheduler
        self.database = database
        self.random = random
        self.is_down = False
        self.is_full = False
        self.backends: dict[int, Backend] = {}
        self._last_pid = 0
        self._waiting: dict[ModelSession, list[Callable[[], None]]] = {}

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

    def work_s(self, text: str = "") -> float:
        """How long the server works on a command."""
        if text == "COMMIT":
            return COMMIT_LEAST_S + COMMIT_SPREAD_S * self.random.random()
        return WORK_LEAST_S + WORK_SPREAD_S * self.random.random()

    def wait_for(self, session: ModelSession, then: Callable[[], None]) -> None:
        self._waiting.setdefault(session, []).append(then)

    def ended(self, session: ModelSession) -> None:
        """A transaction has ended: those that wait for it go on."""
        for then in self._waiting.pop(session, []):
            self.scheduler.after(self.work_s(), then)

    def committed(self, *, is_announced: bool) -> None:
        if is_announced:
            for backend in list(self.backends.values()):
                backend.notify()

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
        self._session: ModelSession | None = None  # of a transaction block
        self._has_failed = False
        self._lock_s = BOUNDS.lock_s
        self._running: Running | None = None
        self._is_lost = False
        self._idle_since_s = 0.0
        self._has_idle_timer = False
        self._commands = 0  # to tell whether a timer is about the command that runs now

    def lost(self) -> None:
        """The client is gone. A statement that waits for a lock notices it within a second."""
        if not self._is_lost:
            self._is_lost = True
            self._server.backends.pop(self.pid, None)
            delay_s = self._server.random.uniform(0, 1.0) if self._running else 0.0
            self._server.scheduler.after(delay_s, self._roll_back)

    def notify(self) -> None:
        if self.on_notify:
            self.wire.to_client(self.on_notify)

    def command(self, text: str, rows: Sequence[Sequence[Any]], answer: Answer) -> None:
        """Carry out one message of the client: a statement, once for each row of values, or a word of control."""
        if self._is_lost:
            return
        self._commands += 1
        if text.startswith("BEGIN"):
            self._session = self._server.database.begin()
            found = LOCK_TIMEOUT.search(text)
            self._lock_s = int(found[1]) / 1000 if found else BOUNDS.lock_s
            self._reply(answer, "BEGIN")
        elif text == "COMMIT":
            self._commit(answer)
        elif text == "ROLLBACK":
            self._roll_back()
            self._reply(answer, "ROLLBACK")
        elif text.startswith("SET ") or text == "SELECT 1":
            self._reply(answer, "SET")
        elif self._has_failed:
            self._reply(answer, error=asyncpg.InFailedSQLTransactionError("the transaction is aborted"))
        elif text.startswith("NOTIFY"):
            assert self._session
            self._session.announce()
            self._reply(answer, "NOTIFY")
        else:
            self._running = self._run(text, rows)
            self._go_on(answer, self._commands)

    def _run(self, text: str, rows: Sequence[Sequence[Any]]) -> Running:
        """Run a statement for each row of values, in the open transaction or in one of its own."""
        session = self._session or self._server.database.begin()
        result = StatementResult([], 0)
        try:
            for values in rows:
                result = yield from session.run_text(text, tuple(values))
            if self._server.is_full and session.has_changes:
                raise asyncpg.DiskFullError("could not extend file")
        except BaseException:
            if session is not self._session:
                session.roll_back()
                self._server.ended(session)
            raise
        if session is not self._session:
            is_announced = session.commit()
            self._server.ended(session)
            self._server.committed(is_announced=is_announced)
        return result

    def _go_on(self, answer: Answer, number: int) -> None:
        """Run the statement until it ends, fails or waits for a lock."""
        if self._running is None or self._is_lost or number != self._commands:
            return
        try:
            holder = next(self._running)
        except StopIteration as done:
            self._running = None
            self._reply(answer, done.value)
        except Refused as error:
            self._fail(answer, asyncpg.IntegrityConstraintViolationError(str(error)))
        except Deadlock:
            self._fail(answer, asyncpg.DeadlockDetectedError("deadlock detected"))
        except asyncpg.PostgresError as error:
            self._fail(answer, error)
        else:
            self._server.wait_for(holder, lambda: self._go_on(answer, number))
            self._server.scheduler.after(self._lock_s, self._give_up_lock, number, holder, answer)

    def _give_up_lock(self, number: int, holder: ModelSession, answer: Answer) -> None:
        if number == self._commands and self._running is not None and not self._is_lost and not holder.is_ended:
            self._running.close()
            self._fail(answer, asyncpg.LockNotAvailableError("canceling statement due to lock timeout"))

    def _fail(self, answer: Answer, error: Exception) -> None:
        """A transaction that has failed frees its locks at once, and waits for its ROLLBACK."""
        self._running = None
        if self._session is not None:
            self._has_failed = True
            self._session.roll_back()
            self._server.ended(self._session)
        self._reply(answer, error=error)

    def _commit(self, answer: Answer) -> None:
        session, self._session = self._session, None
        if session is None or self._has_failed:
            self._session = session
            self._roll_back()
            self._reply(answer, "ROLLBACK")
            return
        if self._server.is_full and session.has_changes:
            self._session = session
            self._roll_back()
            self._reply(answer, error=asyncpg.DiskFullError("could not write to file"))
            return
        is_announced = session.commit()
        self._server.ended(session)
        self._server.committed(is_announced=is_announced)
        self._reply(answer, "COMMIT")

    def _roll_back(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None
        session, self._session, self._has_failed = self._session, None, False
        if session is not None:
            session.roll_back()
            self._server.ended(session)

    def _reply(self, answer: Answer, value: Any = None, error: Exception | None = None) -> None:
        self.wire.to_client(*answer, value, error)
        scheduler = self._server.scheduler
        self._idle_since_s = scheduler.now_s
        if self._session is not None and not self._has_idle_timer:
            self._has_idle_timer = True
            scheduler.after(BOUNDS.idle_in_transaction_s, self._end_if_idle)

    def _end_if_idle(self) -> None:
        """End a session that waits in a transaction for its client. While there are transactions, one timer runs."""
        self._has_idle_timer = False
        scheduler = self._server.scheduler
        if self._session is None or self._is_lost:
            return
        idle_since_s = self._idle_since_s if self._running is None else scheduler.now_s
        if scheduler.now_s >= idle_since_s + BOUNDS.idle_in_transaction_s:
            self.wire.break_off()
        else:
            self._has_idle_timer = True
            scheduler.at(idle_since_s + BOUNDS.idle_in_transaction_s, self._end_if_idle)


class SimulatedConnection:
    """A connection as the store knows it from asyncpg."""

    def __init__(self, server: PostgresServer, link: Link) -> None:
        self._server = server
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
            if self._server.is_down:
                self._wire.to_client(self._answered, opened, None, ConnectionRefusedError(111, "refused"))
            else:
                self._backend = self._server.new_backend(self._wire)
                self._wire.to_client(self._answered, opened, None, None)

        self._wire.to_server(0.0, accept)
        try:
            await opened
        except BaseException:
            self.terminate()
            raise

    async def fetchval(self, text: str, *, timeout: float) -> int:  # noqa: ASYNC109 as asyncpg has it
        assert text == PID
        await self._ask("SELECT 1", [()])
        return self.get_server_pid()

    def get_server_pid(self) -> int:
        assert self._backend
        return self._backend.pid

    async def fetchrow(self, text: str, *values: Any) -> tuple[Any, ...] | None:
        result = await self._ask(text, [values])
        return result.rows[0] if result.rows else None

    async def fetch(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = (await self._ask(text, [values])).rows
        return rows

    async def execute(self, text: str, *values: Any, timeout: float | None = None) -> str:  # noqa: ASYNC109
        done = await self._ask(text, [values])
        if text.startswith(("BEGIN", "COMMIT", "ROLLBACK")):
            self._in_transaction = text.startswith("BEGIN")
        return f"DONE {done.count}" if isinstance(done, StatementResult) else str(done)

    async def executemany(self, text: str, rows: Any) -> None:
        await self._ask(text, list(rows))

    def add_termination_listener(self, listener: Callable[[object], None]) -> None:
        self._on_end.append(listener)

    async def add_listener(self, channel: str, listener: Callable[..., None]) -> None:
        await self._ask("SELECT 1", [()])
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

    def _ask(self, text: str, rows: Sequence[Sequence[Any]]) -> "asyncio.Future[Any]":
        if self._is_closed:
            raise asyncpg.InterfaceError("connection is closed")
        answered = self._link.loop.create_future()
        self._waiting[answered] = None
        assert self._backend
        answer = self._answered, answered
        self._wire.to_server(self._server.work_s(text), self._backend.command, text, rows, answer)
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
