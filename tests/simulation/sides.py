"""The three databases that run the same histories: the model, Postgres and SQLite, one statement at a time.

A side has a few sessions, by number. `run` returns what a statement did, or None if it waits; whatever waited and went
on meanwhile is in `finished`.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Generator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import asyncpg  # type: ignore[import-untyped]
import msgspec

from cadenza.parts.postgres.session import for_postgres
from cadenza.store.statements import Statement
from tests.simulation.database import Deadlock, ModelDatabase, ModelSession, Refused, StatementResult
from tests.simulation.tables import Kind, layouts

POLL_INTERVAL_S = 0.001
WAIT_S = 20.0
DEADLOCK_MS = 10
# Rows are then locked in the order in which a statement names them.
PLANS_OF_LARGE_TABLES = "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"
REFUSED = ("23", "21")  # the classes of error codes: constraints, and a second change of one row
SQLITE_KINDS = {"ck": "CHECK", "pk": "UNIQUE", "uq": "UNIQUE", "fk": "FOREIGN KEY", "no": "NOT NULL"}

Values = Mapping[str, Any]


class Did(msgspec.Struct, frozen=True):
    """What a statement did: its rows and their number, or the constraint that refused it."""

    rows: tuple[Any, ...] = ()
    count: int = 0
    refused: str = ""
    is_deadlock: bool = False


class Side(Protocol):
    finished: dict[int, Did]

    async def run(self, number: int, statement: Statement, values: Values) -> Did | None: ...

    async def end(self, number: int, *, commits: bool) -> None: ...

    async def waiting(self) -> dict[int, set[int]]:
        """The sessions that wait, each with those that it waits for, directly or by way of others."""

    async def give_up(self, number: int) -> None:
        """End a statement that waits, as a lock timeout does. Its transaction has failed, and is to be rolled back."""

    async def contents(self, table: str) -> list[Any]: ...


def did(rows: list[Any], count: int, statement: Statement) -> Did:
    """Rows without an order are compared in one of our own, and some of them without an order not at all."""
    text = for_postgres(statement).text
    if "ORDER BY" not in text and "LIMIT" in text:
        return Did((), count)
    plain = [tuple(int(one) if isinstance(one, Decimal | bool) else one for one in row) for row in rows]
    return Did(tuple(plain if "ORDER BY" in text else sorted(plain, key=repr)), count)


class ModelSide:
    def __init__(self, kind: Kind, sessions: int) -> None:
        self.database = ModelDatabase(kind)
        self.finished: dict[int, Did] = {}
        self._sessions: list[ModelSession | None] = [None] * sessions
        self._running: dict[int, tuple[Statement, Generator[ModelSession, None, StatementResult], ModelSession]] = {}

    async def run(self, number: int, statement: Statement, values: Values) -> Did | None:
        session = self._sessions[number] or self.database.begin()
        self._sessions[number] = session
        done = self._continue(number, statement, session.run(statement, values))
        self._go_on()
        return done

    def _continue(
        self, number: int, statement: Statement, running: Generator[ModelSession, None, StatementResult]
    ) -> Did | None:
        self._running.pop(number, None)
        try:
            self._running[number] = statement, running, next(running)
        except StopIteration as done:
            return did(done.value.rows, done.value.count, statement)
        except Refused as refused:
            return Did(refused=self._refused(str(refused)))
        except Deadlock:
            return Did(is_deadlock=True)
        return None

    def _refused(self, constraint: str) -> str:
        """SQLite does not name the constraint, but says of which kind it is."""
        return SQLITE_KINDS[constraint[:2]] if self.database.kind == "sqlite" else constraint

    async def end(self, number: int, *, commits: bool) -> None:
        session, self._sessions[number] = self._sessions[number], None
        if session is None:
            return
        if commits:
            session.commit()
        else:
            session.roll_back()
        self._go_on()

    def _go_on(self) -> None:
        """Continue what waits for a session that has ended, in the order in which it began to wait."""
        while ready := [number for number, (_, _, other) in self._running.items() if other.is_ended]:
            statement, running, _ = self._running[ready[0]]
            done = self._continue(ready[0], statement, running)
            if done is not None:
                self.finished[ready[0]] = done

    async def waiting(self) -> dict[int, set[int]]:
        numbers = {session: number for number, session in enumerate(self._sessions) if session}
        return {number: {numbers[other]} for number, (_, _, other) in self._running.items()}

    async def give_up(self, number: int) -> None:
        _, running, _ = self._running.pop(number)
        running.close()
        session = self._sessions[number]
        assert session
        session.roll_back()
        self._go_on()

    async def contents(self, table: str) -> list[Any]:
        return sorted((_plain(row.values()) for row in self.database.table(table)), key=repr)


class PostgresSide:
    """Connections to one database, and one that looks who waits."""

    def __init__(self, connections: list[Any], watcher: Any) -> None:
        self.finished: dict[int, Did] = {}
        self._connections = connections
        self._watcher = watcher
        self._pids = {connection.get_server_pid(): number for number, connection in enumerate(connections)}
        self._tasks: dict[int, asyncio.Task[Did]] = {}
        self._open: set[int] = set()
        self._prepared: dict[tuple[int, Statement], Any] = {}

    @classmethod
    async def connect(cls, url: str, sessions: int) -> "PostgresSide":
        connections = [await asyncpg.connect(url) for _ in range(sessions + 1)]
        for connection in connections:
            await connection.execute(f"SET deadlock_timeout = '{DEADLOCK_MS}ms'; {PLANS_OF_LARGE_TABLES}")
        return cls(connections[:-1], connections[-1])

    async def close(self) -> None:
        for connection in (*self._connections, self._watcher):
            await connection.close()

    async def empty(self) -> None:
        """Bring the database back to what the migrations left."""
        tables = [name for name in layouts("postgres").tables if name not in {"epochs", "schema_version"}]
        await self._watcher.execute(
            "SET session_replication_role = replica;"
            f"TRUNCATE {', '.join(tables)} RESTART IDENTITY;"
            "UPDATE epochs SET number = 0;"
            "SET session_replication_role = DEFAULT"
        )

    async def run(self, number: int, statement: Statement, values: Values) -> Did | None:
        if number not in self._open:
            await self._connections[number].execute("BEGIN")
            self._open.add(number)
        self._tasks[number] = asyncio.create_task(self._run(number, statement, values))
        await self._settle()
        return self.finished.pop(number, None)

    async def _run(self, number: int, statement: Statement, values: Values) -> Did:
        text, pick = for_postgres(statement)
        try:
            if (number, statement) not in self._prepared:
                self._prepared[number, statement] = await self._connections[number].prepare(text)
            prepared = self._prepared[number, statement]
            rows = await prepared.fetch(*pick(values))
        except asyncpg.DeadlockDetectedError:
            return Did(is_deadlock=True)
        except asyncpg.PostgresError as error:
            if not error.sqlstate.startswith(REFUSED):
                raise
            return Did(refused=_constraint(error))
        count = prepared.get_statusmsg().rpartition(" ")[2]
        return did([tuple(row) for row in rows], int(count), statement)

    async def _settle(self) -> None:
        """Wait until each statement has ended, or waits for a session that runs none."""
        async with asyncio.timeout(WAIT_S):
            while self._tasks:
                await asyncio.wait(self._tasks.values(), timeout=POLL_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED)
                for number in [number for number, task in self._tasks.items() if task.done()]:
                    self.finished[number] = self._tasks.pop(number).result()
                roots = await self.waiting() if self._tasks else {}
                if all(roots.get(number, set()) - {*self._tasks} for number in self._tasks):
                    return

    async def end(self, number: int, *, commits: bool) -> None:
        if number in self._open:
            self._open.discard(number)
            await self._connections[number].execute("COMMIT" if commits else "ROLLBACK")
            await self._settle()

    async def waiting(self) -> dict[int, set[int]]:
        rows = await self._watcher.fetch(
            "SELECT pid, pg_blocking_pids(pid) FROM unnest($1::int[]) AS pid",
            [pid for pid, number in self._pids.items() if number in self._tasks],
        )
        direct = {self._pids[pid]: {self._pids[other] for other in others} for pid, others in rows}
        found = {number: set(others) for number, others in direct.items() if others}
        for others in found.values():
            while more := {far for near in others for far in direct.get(near, ())} - others:
                others.update(more)
        return found

    async def give_up(self, number: int) -> None:
        task = self._tasks.pop(number)
        await self._watcher.execute("SELECT pg_cancel_backend($1)", self._connections[number].get_server_pid())
        with contextlib.suppress(asyncpg.QueryCanceledError):
            await task
        await self._settle()

    async def contents(self, table: str) -> list[Any]:
        names = ", ".join(layouts("postgres").tables[table].columns)
        return sorted((_plain(row) for row in await self._watcher.fetch(f"SELECT {names} FROM {table}")), key=repr)


class SqliteSide:
    """A connection that writes, with number 0, and others that read. Nothing waits."""

    def __init__(self, path: Path, sessions: int) -> None:
        self.finished: dict[int, Did] = {}
        self._connections = [sqlite3.connect(path, isolation_level=None) for _ in range(sessions)]
        for connection in self._connections:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA synchronous = OFF")

    async def run(self, number: int, statement: Statement, values: Values) -> Did | None:
        connection = self._connections[number]
        if number == 0 and not connection.in_transaction:
            connection.execute("BEGIN IMMEDIATE")
        try:
            cursor = connection.execute(statement.sqlite_text, statement.sqlite_values(values))
            rows = cursor.fetchall()
        except sqlite3.IntegrityError as error:
            return Did(refused=str(error).partition(" constraint")[0])
        return did(rows, len(rows) if cursor.rowcount < 0 else cursor.rowcount, statement)

    async def end(self, number: int, *, commits: bool) -> None:
        if self._connections[number].in_transaction:
            self._connections[number].execute("COMMIT" if commits else "ROLLBACK")

    async def waiting(self) -> dict[int, set[int]]:
        return {}

    async def give_up(self, number: int) -> None:
        raise NotImplementedError

    async def contents(self, table: str) -> list[Any]:
        names = ", ".join(layouts("sqlite").tables[table].columns)
        return sorted((_plain(row) for row in self._connections[0].execute(f"SELECT {names} FROM {table}")), key=repr)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


def _plain(row: Any) -> tuple[Any, ...]:
    return tuple(int(one) if isinstance(one, bool) else one for one in row)


def _constraint(error: Any) -> str:
    if isinstance(error, asyncpg.NotNullViolationError):
        return f"not null: {error.table_name}.{error.column_name}"
    return str(error.constraint_name or error)
