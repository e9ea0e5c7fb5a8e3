"""What every upstream is: something that opens a reply to an ask, or fails with a classified Fault.

All failures end in a Fault, classified here and nowhere else. A Fault carries no text of the upstream's,
so that no name, URL, key or content can travel with it.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Protocol

import msgspec

from cadenza.core.records import Route, Usage
from cadenza.core.tokens import output_room
from cadenza.core.tool_calls import ToolCallPart

RETRY_AFTER_S_MAX = 60.0


class FaultKind(Enum):
    """What went wrong, as far as the gateway needs to know."""

    UNREACHABLE = "unreachable"  # no connection, or it broke before an answer
    TIMED_OUT = "timed_out"  # accepted, then nothing within the time allowed
    BUSY = "busy"  # it says that it has no capacity now
    REFUSED = "refused"  # it found fault with the request itself
    FAILED = "failed"  # it says that it failed, or does not let us in
    MALFORMED = "malformed"  # what it says is not an answer
    TRUNCATED = "truncated"  # the answer ended before it was finished
    OVERLONG = "overlong"  # it took longer in all, or said more, than it may


class Fault(Exception):
    """An upstream failure of a known kind."""

    def __init__(self, kind: FaultKind, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(kind.value if status is None else f"{kind.value} ({status})")
        self.kind = kind
        self.status = status
        self.retry_after_s = retry_after_s


def classify_status(status: int, retry_after: bytes | None = None) -> Fault:
    """A reply that is not 200: whose fault is it, and may it pass?"""
    if status == 429:
        return Fault(FaultKind.BUSY, status, _seconds(retry_after))
    if status in {400, 413, 422}:
        return Fault(FaultKind.REFUSED, status)
    return Fault(FaultKind.FAILED, status, _seconds(retry_after) if status in {503, 529} else None)


class Ask(msgspec.Struct, frozen=True):
    """What is asked of an upstream: messages, tools and sampling fields as raw JSON, ready to be sent.

    With tools, `max_tokens` is fitted to the window of the route that is asked. `begun` is an answer to go on with.
    """

    messages: Sequence[msgspec.Raw]
    sampling: dict[str, msgspec.Raw]
    max_tokens: int | None
    stream: bool
    tools: dict[str, msgspec.Raw] = {}
    prompt_tokens: int = 0
    begun: str = ""

    def output_limit(self, route: Route) -> int | None:
        """What goes upstream as `max_tokens`."""
        limit = route.max_output_tokens if self.max_tokens is None else min(self.max_tokens, route.max_output_tokens)
        if self.tools:
            return min(limit, output_room(route, self.prompt_tokens))
        return None if self.max_tokens is None else limit


class Piece(msgspec.Struct, frozen=True):
    """A part of a reply, freed of its dialect. A non-streaming reply is one piece that holds all of it."""

    content: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None
    has_bad_usage: bool = False  # it gave counts that are none
    has_begun: bool = False  # the model has said something, be it thought that clients are not shown
    calls: tuple[ToolCallPart, ...] = ()


PassOn = Callable[[str], bool]


class OpenReply(Protocol):
    """A reply that has begun: its first piece is known to be good."""

    async def read(self, pass_on: PassOn | None = None, /) -> list[Piece]:
        """What came since the last read; empty after a finished reply, Fault where it breaks off before.

        While it waits, text that comes alone may be handed to `pass_on` in the moment in which it comes, without
        waking the reader: a quarter of what a chunk costs. Where that says no, the text is read as any other.
        """


class Probe(msgspec.Struct, frozen=True):
    """What a look at a provider found: is it there, and which models does it name?"""

    reachable: bool
    detail: str
    models: tuple[str, ...] = ()


class Upstream(Protocol):
    """A provider, as the gateway sees it."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def retire(self) -> None:
        """Stop, once what is under way has ended."""

    def open(self, route: Route, ask: Ask) -> AbstractAsyncContextManager[OpenReply]:
        """Entering asks the upstream and waits for the first piece; leaving, in any way, closes the connection."""

    async def probe(self) -> Probe: ...


def _seconds(retry_after: bytes | None) -> float | None:
    try:
        wait_s = float(retry_after or b"")
    except ValueError:
        return None
    return min(max(wait_s, 0.0), RETRY_AFTER_S_MAX) if math.isfinite(wait_s) else None
