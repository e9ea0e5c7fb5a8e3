"""The bounds of a reply: time for its connection, its first word, each silence and the whole, and its events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from cadenza.core.faults import FaultKind
from cadenza.core.records import Route, Timeouts
from cadenza.upstreams.base import Ask, ReplyBounds
from cadenza.upstreams.openai import AFTER_FINISH_S, OpenAIUpstream
from tests.loopback import Event, LoopbackUpstream, Pause, Sse, Step, chunk, http_head, said
from tests.loopback import Raw as RawReply
from tests.unit.http.peer import Peer, Visit, full_listener
from tests.unit.http.raw_client import WAIT_S, until
from tests.unit.upstreams.asks import (
    COUNTS,
    FINISH,
    ROLE,
    SSE_HEAD,
    STREAMING,
    TIMEOUTS,
    EndlessStream,
    RecordingSink,
    deliver,
    event_bytes,
    event_steps,
    make_ask,
    read_reply,
    route,
    running,
)
from tests.unit.upstreams.clock import Clock

IDLE_S = TIMEOUTS.idle_s


class Delivery:
    """The delivery of a reply in a task of its own."""

    def __init__(
        self,
        openai: OpenAIUpstream,
        ask: Ask = STREAMING,
        where: Route | None = None,
        sink: RecordingSink | None = None,
    ) -> None:
        self.sink = sink or RecordingSink()
        self._task = asyncio.create_task(deliver(openai, self.sink, ask, where))

    @property
    def is_over(self) -> bool:
        return self._task.done()

    async def end(self) -> FaultKind | None:
        fault = await self._task
        return fault.kind if fault else None

    async def ends_after(self, clock: Clock, limit_s: float) -> FaultKind | None:
        """It runs until shortly before the limit and is over shortly after it."""
        await clock.leap(0)
        await clock.leap(limit_s - 1)
        assert not self.is_over
        await clock.leap(2)
        return await self.end()


@asynccontextmanager
async def waiting(
    upstream: LoopbackUpstream, ask: Ask, *steps: Step, where: Route | None = None
) -> AsyncIterator[Delivery]:
    """The upstream has sent these steps and then sends nothing."""
    pause = Pause()
    upstream.always(RawReply([*steps, pause]))
    async with running(upstream.base_url) as openai:
        delivery = Delivery(openai, ask, where or route(1_000_000))
        await asyncio.to_thread(pause.wait_until_reached, WAIT_S)
        yield delivery
    pause.release()


NOT_BEGUN = {
    "no response": [],
    "half a head": [SSE_HEAD[:-4]],
    "a head": [SSE_HEAD],
    "comments": event_steps(b": still here\n\n"),
    "a role": event_steps(ROLE),
    "usage": event_steps(COUNTS),
}


@pytest.mark.parametrize("steps", NOT_BEGUN.values(), ids=NOT_BEGUN)
async def test_a_stream_must_begin_within_first_token_s(
    upstream: LoopbackUpstream, clock: Clock, steps: list[Step]
) -> None:
    """A stream without a sign of an answer times out after first_token_s, and its connection is closed."""
    async with waiting(upstream, make_ask(4096, stream=True), *steps) as delivery:
        assert await delivery.ends_after(clock, TIMEOUTS.first_token_s) is FaultKind.TIMED_OUT
        await asyncio.to_thread(upstream.wait_for_disconnect)


@pytest.mark.parametrize(
    ("max_tokens", "max_output_tokens", "idle_times"),
    [
        (None, 1_000_000, 1),
        (1, 1_000_000, 1),
        (1024, 1_000_000, 1),
        (1025, 1_000_000, 2),
        (131_072, 1_000_000, 128),
        (131_072, 2048, 2),
    ],
)
@pytest.mark.parametrize("steps", [[], [http_head(200, {"content-length": "9"}), b"{"]], ids=["no response", "half"])
async def test_a_whole_reply_has_time_to_be_generated(
    upstream: LoopbackUpstream,
    clock: Clock,
    max_tokens: int | None,
    max_output_tokens: int,
    idle_times: int,
    steps: list[Step],
) -> None:
    """A non-streaming reply has first_token_s plus one idle_s for every 1,024 tokens that it may have."""
    async with waiting(upstream, make_ask(max_tokens), *steps, where=route(max_output_tokens)) as delivery:
        limit_s = TIMEOUTS.first_token_s + idle_times * IDLE_S
        assert await delivery.ends_after(clock, limit_s) is FaultKind.TIMED_OUT


async def test_little_credit_gives_a_silent_provider_no_more_time(upstream: LoopbackUpstream, clock: Clock) -> None:
    """A limit that is only what the account can pay for gives a reply no more time than no limit."""
    ask = msgspec.structs.replace(make_ask(131_072), is_fitted=True)
    async with waiting(upstream, ask, where=route(1_000_000)) as delivery:
        assert await delivery.ends_after(clock, TIMEOUTS.first_token_s + IDLE_S) is FaultKind.TIMED_OUT


async def test_every_part_moves_the_deadline(upstream: LoopbackUpstream, clock: Clock) -> None:
    """A stream times out idle_s after its last part, not after an earlier one; its pieces were delivered."""
    pauses, sink = [Pause() for _ in range(4)], RecordingSink()
    upstream.always(Sse([step for pause in pauses for step in (said("word "), pause)]))
    async with running(upstream.base_url) as openai:
        delivery = Delivery(openai, sink=sink)
        for number, pause in enumerate(pauses[:-1], 1):
            await until(lambda number=number: sink.text == "word " * number)  # type: ignore[misc]
            await clock.leap(0)
            await clock.leap(IDLE_S - 5)
            assert not delivery.is_over
            pause.release()
        await until(lambda: sink.text == "word " * 4)
        assert await delivery.ends_after(clock, IDLE_S) is FaultKind.TIMED_OUT
        await asyncio.to_thread(upstream.wait_for_disconnect)
    assert sink.text == "word " * 4
    pauses[-1].release()


async def test_congestion_is_not_silence(upstream: LoopbackUpstream, clock: Clock) -> None:
    """The time in which the sink is congested does not count; the upstream has idle_s again after it."""
    pause = Pause()
    upstream.always(Sse([said("one "), pause, FINISH]))
    sink = RecordingSink(lambda count: count == 1, resumes_by_itself=False)
    async with running(upstream.base_url) as openai:
        delivery = Delivery(openai, sink=sink)
        await until(lambda: sink.drains > 0)
        await clock.leap(10 * IDLE_S)
        assert not delivery.is_over
        sink.resume()
        assert await delivery.ends_after(clock, IDLE_S) is FaultKind.TIMED_OUT
    pause.release()


@pytest.mark.parametrize(("idle_s", "limit_s"), [(IDLE_S, AFTER_FINISH_S), (3.0, 3.0)], ids=["usual", "short idle_s"])
async def test_a_finished_reply_waits_briefly_for_its_usage(
    upstream: LoopbackUpstream, clock: Clock, idle_s: float, limit_s: float
) -> None:
    """A reply with a finish reason waits AFTER_FINISH_S for its usage, at most idle_s, and is complete without it."""
    where = route(timeouts=Timeouts(connect_s=100, first_token_s=200, idle_s=idle_s, total_s=1000))
    async with waiting(upstream, STREAMING, *event_steps(said("Hi"), FINISH), where=where) as delivery:
        await until(lambda: any(piece.finish_reason for piece in delivery.sink.pieces))
        assert await delivery.ends_after(clock, limit_s) is None
        assert delivery.sink.pieces[-1].finish_reason == "stop"


async def test_comments_do_not_prolong_a_finished_reply(clock: Clock) -> None:
    """A finished reply is over after AFTER_FINISH_S even if the upstream keeps sending comments."""
    comments: asyncio.Queue[bytes] = asyncio.Queue()

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(*event_bytes(said("Hi"), FINISH))
        while True:
            await visit.say(await comments.get())

    async with Peer(script) as peer, running(peer.url) as openai:
        delivery = Delivery(openai)
        await until(lambda: any(piece.finish_reason for piece in delivery.sink.pieces))
        for _ in range(6):
            await clock.leap(AFTER_FINISH_S / 2)
            comments.put_nowait(event_bytes(b": still here\n\n")[-1])
            await clock.leap(0)
        assert delivery.is_over
        assert await delivery.end() is None


async def test_the_time_to_connect_is_part_of_first_token_s(clock: Clock) -> None:
    """Connecting is given up after connect_s, or after a shorter first_token_s: both are TIMED_OUT."""
    with full_listener() as port:
        async with running(f"http://127.0.0.1:{port}/v1") as openai:
            delivery = Delivery(openai)
            assert await delivery.ends_after(clock, TIMEOUTS.connect_s) is FaultKind.TIMED_OUT
            delivery = Delivery(openai, where=route(timeouts=Timeouts(connect_s=300, first_token_s=200)))
            assert await delivery.ends_after(clock, 200) is FaultKind.TIMED_OUT


@pytest.mark.parametrize(
    "last", [said("x"), chunk({"content": ""}), b": still here\n\n"], ids=["words", "empty words", "comments"]
)
async def test_an_endless_stream_is_ended_after_total_s(upstream: LoopbackUpstream, clock: Clock, last: Event) -> None:
    """A stream that never stops sending is OVERLONG after total_s; what it sent before was delivered."""
    upstream.always(EndlessStream([ROLE, said("one"), last]))
    where = route(100_000_000, Timeouts(connect_s=5000, first_token_s=5000, idle_s=5000, total_s=1000))
    async with running(upstream.base_url) as openai:
        delivery = Delivery(openai, where=where)
        await until(lambda: "one" in delivery.sink.text)
        assert await delivery.ends_after(clock, 1000) is FaultKind.OVERLONG
        await asyncio.to_thread(upstream.wait_for_disconnect)
    assert delivery.sink.text.startswith("one")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_reply_must_begin_within_total_s(upstream: LoopbackUpstream, clock: Clock, stream: bool) -> None:
    """A reply that has not begun after total_s times out, even if first_token_s is longer."""
    where = route(timeouts=Timeouts(connect_s=300, first_token_s=300, idle_s=300, total_s=100))
    async with waiting(upstream, make_ask(stream=stream), where=where) as delivery:
        assert await delivery.ends_after(clock, 100) is FaultKind.TIMED_OUT


async def test_total_s_counts_from_the_ask(upstream: LoopbackUpstream, clock: Clock) -> None:
    """A reply that is never silent for idle_s is OVERLONG total_s after the ask, and not earlier."""
    pauses = [Pause() for _ in range(6)]
    upstream.always(Sse([step for pause in pauses for step in (said("x"), pause)]))
    where = route(timeouts=Timeouts(connect_s=100, first_token_s=200, idle_s=300, total_s=1000))
    async with running(upstream.base_url) as openai:
        delivery = Delivery(openai, where=where)
        for number, pause in enumerate(pauses[:4], 1):
            await until(lambda number=number: delivery.sink.text == "x" * number)  # type: ignore[misc]
            await clock.leap(220)
            pause.release()
        await until(lambda: delivery.sink.text == "xxxxx")
        assert await delivery.ends_after(clock, 1000 - 4 * 220) is FaultKind.OVERLONG
    assert delivery.sink.text == "xxxxx"
    for pause in pauses:
        pause.release()


@pytest.mark.parametrize(("max_tokens", "route_tokens"), [(10, 1000), (None, 10), (50, 10)])
@pytest.mark.parametrize("text", ["x", '"'], ids=["recognised", "decoded"])
async def test_a_stream_with_far_more_events_than_tokens_is_ended(
    upstream: LoopbackUpstream, max_tokens: int | None, route_tokens: int, text: str
) -> None:
    """The events of a stream are bounded by its output limit; one more is OVERLONG and closes the connection."""
    reply = EndlessStream([said("x"), said(text)])
    sink, fault = await read_reply(upstream, reply, make_ask(max_tokens, stream=True), route(route_tokens))
    assert fault is not None
    assert fault.kind is FaultKind.OVERLONG
    assert len(sink.pieces) == ReplyBounds.of(10).events
    await asyncio.to_thread(upstream.wait_for_disconnect)
