"""Opens connections to Postgres: the address, the bounds of every wait, the settings of a session.

An address may name several hosts. They are all tried at once, so that a dead host delays nothing, and the first that
takes writes is used. Settings are made with SET, not in the startup message, which poolers refuse.

A pooler in transaction mode, such as pgbouncer's, is refused: it lends one session of Postgres to many connections.
Prepared statements, LISTEN and the settings of a session do not work there, and fail now and then rather than at once.
"""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg  # type: ignore[import-untyped]
import msgspec

Connection = Any  # asyncpg has no types

STATEMENTS_KEPT = 256
CHECK_PEER_EVERY_S = 1
PID = "SELECT pg_backend_pid()"
TRIALS = 3
ANSWER_S = 3.0
LOST_STATEMENT = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)


class PostgresBounds(msgspec.Struct, frozen=True):
    """The longest time of each wait, and the most connections."""

    connections_max: int = 8
    first_connect_s: float = 10.0  # to open the first connection: commands and starting services can wait
    connect_s: float = 1.0  # to open another one
    read_s: float = 1.0  # for a small read, and for a connection of the pool before it
    turn_s: float = 5.0  # for a connection of the pool, for a transaction
    lock_s: float = 1.0  # for a lock of another transaction
    statement_s: float = 2.0  # for a statement of a transaction; more than lock_s, so that a lock can be told
    commit_s: float = 5.0
    rows_s: float = 10.0  # for a read of many rows
    long_read_s: float = 300.0  # for a read of a whole table
    idle_in_transaction_s: float = 5.0  # then Postgres ends the session of a stopped process or lost machine
    dead_peer_s: int = 5  # then either side closes a connection whose packets are not acknowledged

    def with_waits_of(self, wait_s: float) -> "PostgresBounds":
        """The same, with `wait_s` for a connection, a lock or a statement of a request."""
        return msgspec.structs.replace(
            self,
            connect_s=wait_s,
            read_s=wait_s,
            turn_s=wait_s,
            lock_s=wait_s,
            statement_s=wait_s + 1,
            commit_s=wait_s,
            rows_s=wait_s,
        )


class PostgresAddress:
    """A `postgresql://` address, for one host or several. Errors show `where`, which has no user and no password."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._hosts = self._parts.netloc.rpartition("@")[2].split(",")
        is_clear = "@" not in url.partition("://")[2].removeprefix(self._parts.netloc)  # or a password has a / or ?
        self.where = f"postgresql://{','.join(self._hosts)}{self._parts.path}" if is_clear else "postgresql://…"

    @property
    def host_urls(self) -> list[str]:
        """One address for each host."""
        login, at, _ = self._parts.netloc.rpartition("@")
        return [self._parts._replace(netloc=f"{login}{at}{host}").geturl() for host in self._hosts]

    @property
    def target(self) -> str | None:
        """What asyncpg requires of the server: of several hosts, one that takes writes. None: as the address says."""
        named = "target_session_attrs" in parse_qs(self._parts.query)
        return "read-write" if len(self._hosts) > 1 and not named else None


async def connect(address: PostgresAddress, bounds: PostgresBounds, *, keeps_statements: bool = True) -> Connection:
    """Open a connection to the first host that can be used, in `connect_s`. Errors are the driver's own."""
    options = {
        "statement_cache_size": STATEMENTS_KEPT if keeps_statements else 0,
        "max_cached_statement_lifetime": 0,
        "target_session_attrs": address.target,
        "server_settings": {"application_name": "cadenza"},
    }
    async with asyncio.timeout(bounds.connect_s):
        tries = [asyncio.ensure_future(asyncpg.connect(url, timeout=None, **options)) for url in address.host_urls]
        connection = await first_of(tries)
    _bound_socket(connection, bounds)
    return connection


async def set_up(connection: Connection, bounds: PostgresBounds) -> None:
    """Make the settings of this session, in one round trip."""
    settings = {
        "lock_timeout": _in_ms(bounds.lock_s),
        "statement_timeout": _in_ms(bounds.long_read_s),
        "idle_in_transaction_session_timeout": _in_ms(bounds.idle_in_transaction_s),
        "client_connection_check_interval": _in_ms(CHECK_PEER_EVERY_S),
        "tcp_keepalives_idle": str(CHECK_PEER_EVERY_S),
        "tcp_keepalives_interval": str(CHECK_PEER_EVERY_S),
        "tcp_keepalives_count": str(bounds.dead_peer_s),
        "tcp_user_timeout": _in_ms(bounds.dead_peer_s),
        "default_transaction_isolation": "read committed",
        "jit": "off",  # it takes longer to compile the check of the ledger than to run it on a million entries
    }
    sql = "; ".join(f"SET {name} = '{value}'" for name, value in settings.items())
    await connection.execute(sql, timeout=bounds.connect_s)


async def first_of(tries: list[asyncio.Future[Connection]]) -> Connection:
    """Return the first connection that succeeds and close the others. If all fail, raise the last error."""
    chosen = None
    waiting = set(tries)
    try:
        while chosen is None:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            failed = None if waiting else next(iter(done))
            chosen = next((trial for trial in done if not trial.exception()), failed)
        return chosen.result()
    finally:
        for trial in tries:
            if trial is not chosen:
                trial.cancel()
                trial.add_done_callback(_close)


def _close(trial: asyncio.Future[Connection]) -> None:
    if not trial.cancelled() and not trial.exception():
        trial.result().terminate()


def _bound_socket(connection: Connection, bounds: PostgresBounds) -> None:
    """Let the kernel close a connection whose packets are not acknowledged."""
    found = connection._transport.get_extra_info("socket")  # noqa: SLF001 asyncpg has no public way to it
    if found is None or found.family == socket.AF_UNIX:
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, CHECK_PEER_EVERY_S)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, CHECK_PEER_EVERY_S)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, bounds.dead_peer_s)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, bounds.dead_peer_s * 1000)


def _in_ms(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


class SessionShared(Exception):
    """Two statements of one connection ran in different sessions of Postgres."""


async def check_session(connection: Connection, connect: Callable[[], Awaitable[Connection]], answer_s: float) -> None:
    """Raise SessionShared behind a pooler in transaction mode. Other errors are the driver's own, or a TimeoutError.

    When a connection opens, Postgres sends the process id of its backend; a pooler sends an id of its own. If it is not
    that of the backend, two more connections, which prepare no statements, find out whether they share a session.
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
