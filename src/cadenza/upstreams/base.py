"""The protocol that every upstream implements: it opens a reply to an ask, or fails with a Fault of a known kind.

A reply pushes each piece into a sink, synchronously, as soon as it arrives. Only errors.py classifies faults.
A Fault carries no text from the upstream, so it cannot leak a name, a URL, a key or content.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from cadenza.core.content import Content
from cadenza.core.faults import FaultKind, describe_fault
from cadenza.core.records import Route, Usage
from cadenza.core.tokens import output_room
from cadenza.core.tool_calls import ToolCallPart

EVENTS_PER_TOKEN = 2
EVENTS_EXTRA = 256  # for events without a token
BYTES_PER_TOKEN = 2048
BYTES_EXTRA = 1024 * 1024
NO_EXTRAS: Mapping[str, Any] = MappingProxyType({})  # shared by all pieces that have none


class Overflow(msgspec.Struct, frozen=True):
    """A prompt that is too long for the model: the model's window and the prompt's tokens, if the upstream says."""

    window_tokens: int | None = None
    prompt_tokens: int | None = None


class Fault(Exception):
    """An upstream failure of a known kind. `overflow` is given if a refused prompt was too long."""

    def __init__(
        self,
        kind: FaultKind,
        status: int | None = None,
        retry_after_s: float | None = None,
        overflow: Overflow | None = None,
    ) -> None:
        super().__init__(kind.value if status is None else f"{kind.value} ({status})")
        self.kind = kind
        self.status = status
        self.retry_after_s = retry_after_s
        self.overflow = overflow

    @property
    def words(self) -> str:
        return describe_fault(self.kind.value, self.status)


class NotCounted(AssertionError):
    """A request has more bytes than were counted: a field was forgotten. It is not sent."""


class Ask(Content, msgspec.Struct, frozen=True):
    """A request to an upstream: messages, tools and sampling fields as raw JSON.

    `messages` has one leading system message. `separate` has each of the client's own, if there are several.
    `begun` is the start of an answer to continue. `on_asked` gets the route whose connection the request is handed to,
    and None when that route has failed.
    """

    messages: Sequence[msgspec.Raw]
    sampling: dict[str, msgspec.Raw]
    max_tokens: int | None
    stream: bool
    tools: dict[str, msgspec.Raw] = {}
    extra: Mapping[str, msgspec.Raw] = {}  # a route is sent those that it passes on
    prompt_tokens: int = 0
    begun: str = ""
    separate: Sequence[msgspec.Raw] = ()
    is_fitted: bool = False  # the client set no limit; `max_tokens`, if there is one, is what its account can pay for
    is_large: bool = False  # it must not be copied as a whole: that would hold up other requests
    counted_bytes: int | None = None  # the most bytes that credit is held for; None if none is held
    on_asked: Callable[[Route | None], None] = lambda _route: None
    headers: Callable[[], bytes] | None = None  # further ones for each request to an upstream, which name its trace

    @property
    def client_limit(self) -> int | None:
        """The `max_tokens` that the client set, or what its account can pay for of them."""
        return None if self.is_fitted else self.max_tokens

    def messages_for(self, route: Route) -> Sequence[msgspec.Raw]:
        return self.separate if self.separate and route.system == "each" else self.messages

    def check_counted(self, size_bytes: int) -> None:
        """NotCounted if the request has more bytes than were counted."""
        if self.counted_bytes is not None and size_bytes > self.counted_bytes:
            raise NotCounted

    def output_limit(self, route: Route) -> int | None:
        """The `max_tokens` to send upstream, fitted to the route's window; None to send none."""
        most, room = route.max_output_tokens, output_room(route, self.prompt_tokens)
        longest, limit = room if room < most else most, self.max_tokens
        if limit is not None:
            return limit if limit < longest else longest
        return longest if longest < most or route.always_send_max_tokens else None


class ReplyBounds(msgspec.Struct, frozen=True):
    """How large a reply may become before its upstream counts as broken. It follows from the tokens it was allowed."""

    events: int  # of a stream; calls count as events
    size_bytes: int

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(tokens: int) -> "ReplyBounds":
        """An event carries a token or more, and a token is shorter than the fields around it."""
        return ReplyBounds(tokens * EVENTS_PER_TOKEN + EVENTS_EXTRA, tokens * BYTES_PER_TOKEN + BYTES_EXTRA)


class Piece(Content, msgspec.Struct, frozen=True):
    """A part of a reply, in one form for all dialects. A non-streaming reply is a single piece."""

    content: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None
    has_bad_usage: bool = False  # it has a usage field without valid counts
    has_begun: bool = False  # it shows that the model has begun to answer or to reason
    calls: tuple[ToolCallPart, ...] = ()
    extras: Mapping[str, Any] = NO_EXTRAS  # `refusal` and the fields of reasoning: passed on as they are


class Sink(Protocol):
    """Takes the pieces of a reply as soon as they arrive."""

    def take(self, piece: Piece, /) -> None: ...

    def take_texts(self, texts: list[str], /) -> bool:
        """Pieces of text alone that arrived together: the same as `take` for each of them and then `flush`."""

    def flush(self) -> bool:
        """Called after the pieces that arrived together. False if the sink is congested: then wait for `drain`."""

    async def drain(self) -> None:
        """Return once the sink is no longer congested."""


class OpenReply(Protocol):
    """A reply whose first piece has arrived. The caller must close it, whether or not it was delivered."""

    async def deliver(self, sink: Sink, /) -> None:
        """Hand every piece to the sink and return after the last one; Fault if the reply breaks off."""

    async def close(self) -> None:
        """End the exchange. If the reply is not complete, this stops the upstream from generating."""


class Collector:
    """A sink that keeps every piece."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []

    async def collect(self, upstream: "Upstream", route: Route, ask: Ask) -> None:
        """Get the whole reply to an ask. What came before a Fault is kept."""
        reply = await upstream.open(route, ask)
        try:
            await reply.deliver(self)
        finally:
            await reply.close()

    @property
    def text(self) -> str:
        return "".join([piece.content for piece in self.pieces])

    @property
    def usage(self) -> Usage | None:
        """The last counts that came."""
        return next((piece.usage for piece in reversed(self.pieces) if piece.usage), None)

    def take(self, piece: Piece) -> None:
        self.pieces.append(piece)

    def take_texts(self, texts: list[str]) -> bool:
        for text in texts:
            self.take(Piece(text, has_begun=True))
        return self.flush()

    def flush(self) -> bool:
        return True

    async def drain(self) -> None:
        """Never congested."""


class Probe(msgspec.Struct, frozen=True):
    """The result of a test request to a provider."""

    reachable: bool
    detail: str
    models: tuple[str, ...] = ()
    windows: Mapping[str, int] = {}  # in tokens, of the models for which the provider says it
    owner: str = ""  # of the first model: by it, model servers tell what they are
    advice: str = ""  # what to do if it is not reachable


class Upstream(Protocol):
    """One provider."""

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Release all resources. Called after the last reply was closed, or when open replies may be dropped."""

    async def open(self, route: Route, ask: Ask) -> OpenReply:
        """Send the ask and wait for the first piece; Fault if none comes."""

    async def probe(self) -> Probe: ...
