"""Asks, routes and sinks for the tests of the OpenAI upstream, and ways to read a whole reply."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import msgspec
from msgspec import Raw

from cadenza.core.records import Route, Timeouts
from cadenza.upstreams.base import Ask, Fault, OpenReply, Piece, Sink
from cadenza.upstreams.dialects import PLAIN, Dialect
from cadenza.upstreams.openai import OpenAIUpstream
from tests.loopback import USAGE, Event, LoopbackUpstream, Reply, Request, Sse, Step, chunk, http_head
from tests.unit.http.raw_client import WAIT_S

MESSAGE = Raw(b'{"role":"user",  "content":"h\\u00e9", "x_vendor": 1.50}')
TIMEOUTS = Timeouts(connect_s=100, first_token_s=200, idle_s=30, total_s=100_000)
SSE_HEAD = http_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
ROLE = chunk({"role": "assistant", "content": ""})
FINISH = chunk(finish="stop")
COUNTS = chunk(choices=[], usage=USAGE)


class EndlessStream(msgspec.Struct, frozen=True):
    """A stream that repeats its last event forever."""

    events: list[Event]

    def steps(self, request: Request) -> Iterator[Step]:
        head, *body, _ = Sse(self.events, done=False).steps(request)
        return itertools.chain([head], body, itertools.repeat(body[-1]))


class RecordingSink:
    """Keeps every piece. It may become congested after any piece, and then stays so until `resume` or for one drain."""

    def __init__(self, congests: Callable[[int], bool] = lambda _: False, *, resumes_by_itself: bool = True) -> None:
        self.pieces: list[Piece] = []
        self.drains = 0
        self._congests = congests
        self._resumes_by_itself = resumes_by_itself
        self._clear = asyncio.Event()
        self._clear.set()

    @property
    def text(self) -> str:
        return "".join(piece.content for piece in self.pieces)

    def flush(self) -> bool:
        return self._clear.is_set()

    def take(self, piece: Piece) -> None:
        self.pieces.append(piece)
        if self._congests(len(self.pieces)):
            self._clear.clear()

    def take_texts(self, texts: list[str]) -> bool:
        for text in texts:
            self.take(Piece(text, has_begun=True))
        return self.flush()

    async def drain(self) -> None:
        self.drains += 1
        if self._resumes_by_itself:
            await asyncio.sleep(0)
            self._clear.set()
        await self._clear.wait()

    def resume(self) -> None:
        self._clear.set()


def route(max_output_tokens: int = 1000, timeouts: Timeouts = TIMEOUTS) -> Route:
    return Route("provider", "large-7", 100_000, max_output_tokens, timeouts=timeouts)


def make_ask(max_tokens: int | None = None, *, stream: bool = False, **sampling: bytes) -> Ask:
    return Ask([MESSAGE], {name: Raw(value) for name, value in sampling.items()}, max_tokens, stream)


STREAMING = make_ask(stream=True)


@asynccontextmanager
async def running(base_url: str, api_key: str | None = None, dialect: Dialect = PLAIN) -> AsyncIterator[OpenAIUpstream]:
    upstream = OpenAIUpstream(base_url, api_key, dialect)
    await upstream.start()
    try:
        yield upstream
    finally:
        await upstream.stop()


@asynccontextmanager
async def opened(openai: OpenAIUpstream, ask: Ask = STREAMING, where: Route | None = None) -> AsyncIterator[OpenReply]:
    """An open reply, closed at the end of the block."""
    reply = await openai.open(where or route(), ask)
    try:
        yield reply
    finally:
        await reply.close()


async def deliver(openai: OpenAIUpstream, sink: Sink, ask: Ask = STREAMING, where: Route | None = None) -> Fault | None:
    """Deliver a whole reply. The fault that it ended with, at its opening or later."""
    try:
        async with opened(openai, ask, where) as reply:
            await reply.deliver(sink)
    except Fault as fault:
        return fault
    return None


async def read_pieces(openai: OpenAIUpstream, ask: Ask = STREAMING, where: Route | None = None) -> list[Piece]:
    """Every piece of a reply that ends without a fault."""
    sink = RecordingSink()
    assert await deliver(openai, sink, ask, where) is None
    return sink.pieces


async def read_reply(
    upstream: LoopbackUpstream, reply: Reply, ask: Ask = STREAMING, where: Route | None = None
) -> tuple[RecordingSink, Fault | None]:
    """Ask the loopback upstream, which answers with this reply: what was delivered, and the fault at the end."""
    upstream.always(reply)
    sink = RecordingSink()
    async with asyncio.timeout(WAIT_S), running(upstream.base_url) as openai:
        return sink, await deliver(openai, sink, ask, where)


async def fault_of(upstream: LoopbackUpstream, reply: Reply, ask: Ask = STREAMING) -> Fault:
    _, fault = await read_reply(upstream, reply, ask)
    assert fault is not None
    assert fault.__cause__ is None
    return fault


def event_steps(*events: Event) -> list[Step]:
    """The head of an event stream and these events, but no end."""
    return list(Sse(events, done=False).steps(Request("POST", "/", {}, b"")))[:-1]


def event_bytes(*events: Event) -> list[bytes]:
    """The same, of events without pauses."""
    return [step for step in event_steps(*events) if isinstance(step, bytes)]
