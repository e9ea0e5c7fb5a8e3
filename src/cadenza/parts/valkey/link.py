"""Keeps one connection to Valkey and reconnects when it is lost. Nothing waits while there is none.

Stance on failure: a command that Valkey does not answer is answered with None, and the caller decides by itself.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import hiredis
import msgspec

from cadenza.observe import Observer
from cadenza.parts.valkey.connection import (
    CONNECT_S,
    NOT_UNDERSTOOD,
    PREFIX,
    Answer,
    Answered,
    Part,
    ValkeyAddress,
    ValkeyConnection,
    ValkeyUnreachable,
    error_code,
)


class ValkeyTiming(msgspec.Struct, frozen=True):
    """The time limits, in seconds. A lease is renewed often enough that two renewals in a row may fail."""

    trip_s: float = 0.1  # how long a command may take
    connect_s: float = CONNECT_S
    retry_s: float = 0.1  # from the end of a connection to the next attempt; doubled after each failure
    retry_s_max: float = 2.0
    stable_s: float = 10.0  # after a connection that lasted this long, the backoff starts again
    settle_s: float = 4.0  # how long all processes take to reconnect to a Valkey that has lost its data
    lease_s: float = 3.0
    lease_margin_s: float = 0.25  # a process stops using its lease this long before Valkey gives it to others
    renew_s: float = 0.5
    unsettled_s: float = 0.02  # between reports of a process that has more slots than its share, or waits for its share
    gap_s: float = 0.005  # the least time between two reports


class Script(msgspec.Struct, frozen=True):
    """A Lua script. Valkey caches it by its digest until it restarts."""

    text: bytes
    digest: str

    @classmethod
    def read(cls, name: str) -> "Script":
        text = (Path(__file__).parent / name).read_bytes()
        return cls(text, hashlib.sha1(text, usedforsecurity=False).hexdigest())


class ValkeyLink:
    """The link to Valkey.

    | state | event | next |
    |---|---|---|
    | down | connected, signed in, and a write was answered in time | up |
    | up | the connection was lost, a command was late, or a command was refused | down |
    """

    def __init__(
        self,
        address: ValkeyAddress,
        timing: ValkeyTiming,
        observer: Observer,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.now_s = now_s
        self.came_up: Callable[[], None] = lambda: None
        self.pushed: Callable[[bytes], None] = lambda _: None
        self._address = address
        self._timing = timing
        self._log = observer.log
        self._gauge = observer.metrics.shared_state_up
        self._connection: ValkeyConnection | None = None  # while the link is up
        self._lost = asyncio.Event()
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._reason = ""
        self._is_down_logged = False

    @property
    def is_up(self) -> bool:
        return self._connection is not None

    @property
    def channel(self) -> str:
        """The channel of this database: all databases of a server share the names of channels."""
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
        """Run a script that answers with a list of `size` items."""
        rest = (len(keys), *keys, *arguments)

        def check(answer: Answer) -> None:
            """Send a script again that is not in Valkey's cache. Any other error ends the connection."""
            if isinstance(answer, hiredis.ReplyError) and str(answer).startswith("NOSCRIPT"):
                self.send(check, "EVAL", script.text, *rest)
            elif answer is None or (isinstance(answer, list) and len(answer) == size):
                answered(answer)
            else:
                if self._connection:
                    is_error = isinstance(answer, hiredis.ReplyError)
                    self._connection.end(error_code(answer) if is_error else NOT_UNDERSTOOD)
                answered(None)

        self.send(check, "EVALSHA", script.digest, *rest)

    async def _keep_up(self) -> None:
        wait_s = self._timing.retry_s
        while True:
            began_s = self.now_s()
            self._lost.clear()
            connection = ValkeyConnection(self._timing.trip_s, self._push, self._end, self.now_s)
            try:
                await connection.open(self._address, self._timing.connect_s, self.channel)
            except ValkeyUnreachable as reason:
                self._log_down(str(reason))
            else:
                self._connection = connection
                self._log_up()
                self.came_up()
                self._tried.set()
                await self._lost.wait()
                self._connection = None
                self._log_down(self._reason)
            self._tried.set()
            if self.now_s() - began_s > self._timing.stable_s:
                wait_s = self._timing.retry_s
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, self._timing.retry_s_max)

    def _push(self, message: list[bytes]) -> None:
        if message[0] == b"message":
            self.pushed(message[2])

    def _end(self, reason: str) -> None:
        self._connection, self._reason = None, reason
        self._lost.set()

    def _log_up(self) -> None:
        self._gauge.set(1)
        if self._is_down_logged:
            self._log.info("the shared state is back")
        self._is_down_logged = False

    def _log_down(self, reason: str) -> None:
        """Log it once for each time that it goes down."""
        self._gauge.set(0)
        if not self._is_down_logged:
            self._log.warning("the shared state does not answer: this process keeps to its share", reason=reason)
        self._is_down_logged = True
