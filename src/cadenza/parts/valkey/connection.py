"""One connection to Valkey: its address, sign-in, and commands.

Commands are sent together, once per turn of the event loop, and answers come in order. A command that is not answered
in time, or an answer that is not RESP, ends the connection. When it ends, every command that waits is answered with
None.
"""

import asyncio
import re
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis
import msgspec

from cadenza.http.connecting import connect_to_host, make_connection

PREFIX = "{cadenza}:1:"  # in a cluster all keys are on one node; the number changes with the meaning of the values
TLS_SCHEMES = ("rediss", "valkeys")
PORT = 6379
CONNECT_S = 1.0
PROBE_KEY_MS = 1000
PROBE_S = 5.0
GRACE_S = 0.01  # after a stall of this process its timers run before the answers that have arrived are read
NOT_UNDERSTOOD = "the answer was not understood"

Answer = Any
Answered = Callable[[Answer], None]
Part = str | bytes | int


class ValkeyUnreachable(Exception):
    """Valkey cannot be used. The text is the reason, without the address."""


class ValkeyAddress(msgspec.Struct, frozen=True):
    """Where Valkey listens, and how to sign in. Its repr shows neither user nor password."""

    host: str = ""
    port: int = PORT
    path: str = ""  # of a Unix socket, instead of host and port
    tls: ssl.SSLContext | None = None
    database: int = 0
    credentials: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"ValkeyAddress({self.path or f'{self.host}:{self.port}'}, database={self.database})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("place", self.path or f"{self.host}:{self.port}"), ("database", self.database)]

    @classmethod
    def parse(cls, url: str) -> "ValkeyAddress":
        """Read an address that the config has checked."""
        parts = urlsplit(url)
        credentials = (unquote(parts.username or "default"), unquote(parts.password)) if parts.password else ()
        if parts.scheme == "unix":
            (database,) = parse_qs(parts.query).get("db", ["0"])
            return cls(path=unquote(parts.path), database=int(database), credentials=credentials)
        return cls(
            host=parts.hostname or "",
            port=parts.port or PORT,
            tls=ssl.create_default_context() if parts.scheme in TLS_SCHEMES else None,
            database=int(parts.path.strip("/") or 0),
            credentials=credentials,
        )


class ValkeyConnection(asyncio.Protocol):
    """Sends commands. `pushed` gets the messages of subscribed channels; `ended` is called once, with the reason."""

    def __init__(
        self,
        trip_s: float,
        pushed: Callable[[list[bytes]], None] = lambda _: None,
        ended: Callable[[str], None] = lambda _: None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trip_s = trip_s
        self._now_s = now_s
        self._pushed = pushed
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[bytes] = []
        self._waiting: deque[tuple[Answered, float]] = deque()  # with the time at which each was sent
        self._late: Answered | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reason: str | None = None

    async def open(self, address: ValkeyAddress, connect_s: float, channel: str | None = None) -> None:
        """Connect, sign in, make a test write, and subscribe to the channel. ValkeyUnreachable if any of it fails."""
        try:
            async with asyncio.timeout(connect_s):
                await self._connect(address)
        except TimeoutError:
            raise ValkeyUnreachable("no connection in time") from None
        except OSError as error:
            raise ValkeyUnreachable(error.strerror or type(error).__name__) from None
        except UnicodeError:
            raise ValkeyUnreachable("the name of the host cannot be looked up") from None
        if channel:
            self._write(("SUBSCRIBE", channel))  # the answer is a push message (RESP3)

    async def ask(self, *parts: Part) -> Answer:
        """The answer to one command. ValkeyUnreachable if none came in time, or if it is an error."""
        answer = await ask(self.send, *parts)
        if answer is None:
            raise ValkeyUnreachable("no answer in time")
        if isinstance(answer, hiredis.ReplyError):
            raise ValkeyUnreachable(error_code(answer))
        return answer

    async def facts(self, *sections: str) -> dict[str, str]:
        """What the server says about itself."""
        info = bytes(await self.ask("INFO", *sections)).decode(errors="replace")
        return dict(re.findall(r"^(\w+):(.*?)\r?$", info, re.MULTILINE))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end("the connection was closed" if exc is None else type(exc).__name__)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not False and self._reason is None:
                if isinstance(answer, hiredis.PushNotification):
                    self._pushed(answer)
                else:
                    answered, _ = self._waiting.popleft()
                    answered(answer)
        except (hiredis.ProtocolError, IndexError):
            self.end(NOT_UNDERSTOOD)

    def send(self, answered: Answered, *parts: Part) -> None:
        if self._reason is not None:
            answered(None)
            return
        self._write(parts)
        self._waiting.append((answered, self._now_s()))
        if self._timer is None:
            self._timer = self._loop.call_later(self._trip_s, self._check)

    def end(self, reason: str) -> None:
        if self._reason is not None:
            return
        self._reason = reason
        if self._timer:
            self._timer.cancel()
        if self._transport:
            self._transport.abort()
        self._ended(reason)
        while self._waiting:
            answered, _ = self._waiting.popleft()
            answered(None)

    async def _connect(self, address: ValkeyAddress) -> None:
        credentials = ("AUTH", *address.credentials) if address.credentials else ()
        try:
            if address.path:
                await self._loop.create_unix_connection(lambda: self, address.path)
            else:
                connected = await connect_to_host(address.host, address.port)
                await make_connection(lambda: self, connected, address.tls, address.host)
            await asyncio.gather(
                self.ask("HELLO", 3, *credentials, "SETNAME", "cadenza"),
                self.ask("SELECT", address.database),
                self.ask("SET", f"{PREFIX}probe", 1, "PX", PROBE_KEY_MS),
            )
        except BaseException:
            self.end("not connected")
            raise

    def _write(self, parts: tuple[Part, ...]) -> None:
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(hiredis.pack_command(parts))  # type: ignore[arg-type]  # declared as a tuple of one

    def _flush(self) -> None:
        """Write to the transport, unless it was closed since: uvloop would raise."""
        assert self._transport
        if not self._transport.is_closing():
            self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()

    def _check(self) -> None:
        """End the connection if the oldest command is late, and was already late a moment ago."""
        self._timer = None
        if not self._waiting:
            return
        oldest, sent_s = self._waiting[0]
        left_s = sent_s + self._trip_s - self._now_s()
        if left_s <= 0:
            if self._late is oldest:
                self.end("no answer in time")
                return
            self._late, left_s = oldest, GRACE_S
        self._timer = self._loop.call_later(left_s, self._check)


@asynccontextmanager
async def connected(address: ValkeyAddress, trip_s: float, connect_s: float) -> AsyncIterator[ValkeyConnection]:
    """A connection for the block, whose commands may take `trip_s` each. ValkeyUnreachable."""
    connection = ValkeyConnection(trip_s)
    await connection.open(address, connect_s)
    try:
        yield connection
    finally:
        connection.end("done")


def ask(send: Callable[..., None], *parts: Part) -> asyncio.Future[Answer]:
    """Send one command, with `send` of a connection or a link. The answer is None if none came in time."""
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    send(lambda given: None if answer.done() else answer.set_result(given), *parts)
    return answer


def error_code(error: hiredis.ReplyError) -> str:
    """The first word of an error, such as WRONGPASS or READONLY. The rest may quote what was sent."""
    return f"Valkey answered {str(error).partition(' ')[0]}"


class ValkeyServer(msgspec.Struct, frozen=True):
    """What `cadenza doctor` reports of a server that answers."""

    server: str
    version: tuple[int, ...]
    is_cluster: bool  # its keys are spread over several nodes
    trip_s: float  # how long one command took


async def probe(url: str) -> ValkeyServer:
    """Ask a server for its version. ValkeyUnreachable, with the reason, if it cannot be used."""
    async with connected(ValkeyAddress.parse(url), PROBE_S, CONNECT_S + PROBE_S) as connection:
        began_s = asyncio.get_running_loop().time()
        try:
            facts = await connection.facts()
        except ValkeyUnreachable:
            raise ValkeyUnreachable("INFO is not answered") from None
        trip_s = asyncio.get_running_loop().time() - began_s
    server = "Valkey" if "valkey_version" in facts else "Redis"
    version = facts.get("valkey_version") or facts.get("redis_version", "0")
    return ValkeyServer(
        server, tuple(map(int, re.findall(r"\d+", version))), facts.get("cluster_enabled") == "1", trip_s
    )
