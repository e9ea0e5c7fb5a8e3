"""Refuses a pooler in transaction mode, such as pgbouncer's, which lends one session of Postgres to many connections.

Prepared statements, LISTEN and the settings of a session do not work there, and fail now and then rather than at once.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg  # type: ignore[import-untyped]

from cadenza.store.postgres.connect import Connection

PID = "SELECT pg_backend_pid()"
TRIALS = 3
ANSWER_S = 3.0
LOST_STATEMENT = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)

Connect = Callable[[], Awaitable[Connection]]


class SessionShared(Exception):
    """Two statements of one connection ran in different sessions of Postgres."""


async def check_session(connection: Connection, connect: Connect, answer_s: float) -> None:
    """Raise SessionShared behind such a pooler. Other errors are the driver's own, or a TimeoutError.

    When a connection begins Postgres tells the number of its session; a pooler tells a number of its own. Only then
    two more connections are made, by `connect`, that prepare no statements.
    """
    try:
        if await connection.fetchval(PID, timeout=answer_s) == connection.get_server_pid():
            return
    except LOST_STATEMENT:
        raise SessionShared from None
    async with _closing(await connect()) as first, _closing(await connect()) as second:
        for _ in range(TRIALS):
            await _compare(first, second)


async def _compare(first: Connection, second: Connection) -> None:
    """Occupy the session that `first` used. If `first` goes on in another, or must wait, the session is shared."""
    pid = await first.fetchval(PID, timeout=ANSWER_S)
    try:
        await second.execute("BEGIN", timeout=ANSWER_S)
    except (asyncpg.ProtocolViolationError, asyncpg.ConnectionDoesNotExistError):  # a pooler in statement mode
        raise SessionShared from None
    await second.fetchval(PID, timeout=ANSWER_S)
    try:
        pid_again = await first.fetchval(PID, timeout=ANSWER_S)
    except TimeoutError:
        raise SessionShared from None
    if pid != pid_again:
        raise SessionShared
    await second.execute("ROLLBACK", timeout=ANSWER_S)


@contextlib.asynccontextmanager
async def _closing(connection: Connection) -> AsyncIterator[Connection]:
    try:
        yield connection
    finally:
        connection.terminate()
