"""Keeps one connection to Valkey, and makes it again when it is lost. Nothing waits while there is none.

Stance on failure: a command without an answer is answered with None, and the caller decides by itself.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import hiredis
import msgspec

from cadenza.fleet.address import Address
from cadenza.fleet.valkey.timing import Timing
from cadenza.fleet.valkey.wire import NOT_UNDERSTOOD, Answer, Answered, Connection, Part
from cadenza.observe import Observer

PREFIX = "{cadenza}:1:"  # in a cluster all keys are on one node; the number changes with the meaning of the values
PROBE_MS = 1000


class Unreachable(Exception):
    """Valkey cannot be used. The text is the reason, without the address."""


class Script(msgspec.Struct, frozen=True):
    """A Lua script. Valkey keeps it by its digest until it is restarted."""

    text: bytes
    digest: str

    @classmethod
    def read(cls, name: str) -> "Script":
        text = (Path(__file__).parent / name).read_bytes()
        return cls(text, hashlib.sha1(text, usedforsecurity=False).hexdigest())


class Link:
    """The link to Valkey.

    | state | event | next |
    |---|---|---|
    | down | connected, signed in, and a write was answered in time | up |
    | up | the connection was lost, a command was late, or a command was refused | down |
    """

    def __init__(self, address: Address, timing: Timing, observer: Observer) -> None:
        self.came_up: Callable[[], None] = lambda: None
        self.pushed: Callable[[bytes], None] = lambda _: None
        self._address = address
        self._timing = timing
        self._log = observer.log
        self._gauge = observer.metrics.shared_state_up
        self._connection: Connection | None = None  # while the link is up
        self._lost = asyncio.Event()
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._reason = ""
        self._is_said_down = False

    @property
    def is_up(self) -> bool:
        return self._connection is not None

    @property
    def channel(self) -> str:
        """Channels are not divided by database."""
        return f"{PREFIX}slots:{self._address.database}"

    async def start(self) -> None:
        """Return after the first attempt, whether Valkey answered or not."""
        self._task = asyncio.create_task(self._keep_up())
        await self._tried.wait()

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._connection:
            self._connection.end("stopped")

    def send(self, answered: Answered, *parts: Part) -> None:
        if self._connection:
            self._connection.send(answered, *parts)
        else:
            answered(None)

    def run(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Part], size: int, answered: Answered
    ) -> None:
        """Run a script whose answer is a list of this size."""
        rest = (len(keys), *keys, *arguments)

        def check(answer: Answer) -> None:
            """A script that Valkey has forgotten is sent again. Any other error takes the link down."""
            if isinstance(answer, hiredis.ReplyError) and str(answer).startswith("NOSCRIPT"):
                self.send(check, "EVAL", script.text, *rest)
            elif answer is None or (isinstance(answer, list) and len(answer) == size):
                answered(answer)
            else:
                self._refuse(_code(answer) if isinstance(answer, hiredis.ReplyError) else NOT_UNDERSTOOD)
                answered(None)

        self.send(check, "EVALSHA", script.digest, *rest)

    def _refuse(self, reason: str) -> None:
        if self._connection:
            self._connection.end(reason)

    async def _keep_up(self) -> None:
        wait_s = self._timing.retry_s
        while True:
            began_s = time.monotonic()
            try:
                await self._connect()
            except Unreachable as reason:
                self._say_down(str(reason))
            else:
                self._say_up()
                self.came_up()
                self._tried.set()
                await self._lost.wait()
                self._connection = None
                self._say_down(self._reason)
            self._tried.set()
            if time.monotonic() - began_s > self._timing.stable_s:
                wait_s = self._timing.retry_s
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, self._timing.retry_s_max)

    async def _connect(self) -> None:
        self._lost.clear()
        try:
            async with asyncio.timeout(self._timing.connect_s):
                self._connection = await open_connection(
                    self._address, partial(Connection, self._timing.trip_s, self._push, self._end), self.channel
                )
        except TimeoutError:
            raise Unreachable("no connection in time") from None

    def _push(self, message: list[bytes]) -> None:
        if message[0] == b"message":
            self.pushed(message[2])

    def _end(self, reason: str) -> None:
        self._connection, self._reason = None, reason
        self._lost.set()

    def _say_up(self) -> None:
        self._gauge.set(1)
        if self._is_said_down:
            self._log.info("the shared state is back")
        self._is_said_down = False

    def _say_down(self, reason: str) -> None:
        """Log it once for each time that it goes down."""
        self._gauge.set(0)
        if not self._is_said_down:
            self._log.warning("the shared state does not answer: this process keeps to its share", reason=reason)
        self._is_said_down = True


async def open_connection(address: Address, make: Callable[[], Connection], channel: str | None = None) -> Connection:
    """Connect, sign in, and show that writes are taken; Unreachable if any of it fails."""
    loop = asyncio.get_running_loop()
    try:
        if address.path:
            transport, connection = await loop.create_unix_connection(make, address.path)
        else:
            transport, connection = await loop.create_connection(make, address.host, address.port, ssl=address.tls)
    except OSError as error:
        raise Unreachable(error.strerror or type(error).__name__) from None
    except UnicodeError:
        raise Unreachable("the name of the host cannot be looked up") from None
    try:
        await _sign_in(connection, address, channel)
    except BaseException:
        transport.abort()
        raise
    return connection


async def _sign_in(connection: Connection, address: Address, channel: str | None) -> None:
    credentials = ("AUTH", *address.credentials) if address.credentials else ()
    answers = [
        ask(connection, "HELLO", 3, *credentials, "SETNAME", "cadenza"),
        ask(connection, "SELECT", address.database),
        ask(connection, "SET", f"{PREFIX}probe", 1, "PX", PROBE_MS),
    ]
    if channel:
        connection.subscribe(channel)
    for answer in await asyncio.gather(*answers):
        if answer is None:
            raise Unreachable("no answer in time")
        if isinstance(answer, hiredis.ReplyError):
            raise Unreachable(_code(answer))


def ask(line: Connection | Link, *parts: Part) -> asyncio.Future[Answer]:
    """Send one command. The answer is None if none came in time."""
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    line.send(lambda given: None if answer.done() else answer.set_result(given), *parts)
    return answer


def _code(error: hiredis.ReplyError) -> str:
    """The first word of an error, such as WRONGPASS or READONLY. The rest may quote what was sent."""
    return f"Valkey answered {str(error).partition(' ')[0]}"
