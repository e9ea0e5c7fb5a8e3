"""What bounds a reply as a whole, in time and in number, and how an upstream is asked to go on with an answer."""

import asyncio
import itertools
from collections.abc import Iterator

import msgspec
import pytest
from msgspec import Raw

from cadenza.core.records import Route, Timeouts
from cadenza.upstreams.base import Ask, Fault, FaultKind, Piece
from cadenza.upstreams.openai import EVENTS_MORE, EVENTS_PER_TOKEN
from tests.loopback import Event, Good, LoopbackUpstream, Pause, Reply, Request, Sse, Step, chunk, said
from tests.loopback import Raw as Said
from tests.unit.upstreams.clock import Clock
from tests.unit.upstreams.test_openai import FINISH, MESSAGE, ROLE, WAIT_S, asking, endpoint, read_into, route

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])
on_asyncio = pytest.mark.asyncio(loop_factories=["asyncio"])  # the loop whose clock can be put forward

CLOCK_S = 0.002  # how exactly the loop tells the time
TOTAL_S = 0.3
HURRIED = Timeouts(connect_s=10, first_token_s=10, idle_s=10, total_s=TOTAL_S)
PATIENT = Timeouts(connect_s=100, first_token_s=200, idle_s=300, total_s=1000)


class Endless(msgspec.Struct, frozen=True):
    """A stream whose last event is said again for ever."""

    events: list[Event]

    def steps(self, request: Request) -> Iterator[Step]:
        head, *body, _, _ = Sse(self.events).steps(request)
        yield head
        yield from body
        yield from itertools.repeat(body[-1])


async def hear(upstream: LoopbackUpstream, where: Route, ask: Ask) -> tuple[list[Piece], FaultKind | None]:
    """What came before the end, and the fault that ended it."""
    pieces, kind = list[Piece](), None
    async with asyncio.timeout(WAIT_S), endpoint(upstream.base_url) as made:
        try:
            async with made.open(where, ask) as reply:
                await read_into(pieces, reply)
        except Fault as fault:
            kind = fault.kind
    return pieces, kind


@pytest.mark.parametrize(
    "last", [said("x"), chunk({"content": ""}), b": still here\n\n"], ids=["words", "empty words", "comments"]
)
async def test_a_stream_without_end_is_ended_in_time(upstream: LoopbackUpstream, last: Event) -> None:
    """However busily an upstream goes on, its reply has `total_s`; what it said until then was handed out."""
    upstream.always(Endless([ROLE, said("one"), last]))
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    pieces, kind = await hear(upstream, route(131_072, HURRIED), asking(stream=True))
    assert loop.time() - started_s >= TOTAL_S - CLOCK_S
    assert kind is FaultKind.OVERLONG
    assert "".join(piece.content for piece in pieces).startswith("one")
    await asyncio.to_thread(upstream.wait_for_disconnect)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_beginning_has_no_more_than_the_whole(upstream: LoopbackUpstream, stream: bool) -> None:
    """A reply that does not begin within `total_s` is given up, though it might have had longer for its first word."""
    upstream.always(Said([Pause()]))
    assert await hear(upstream, route(1000, HURRIED), asking(stream=stream)) == ([], FaultKind.TIMED_OUT)


@on_asyncio
async def test_the_whole_time_counts_from_the_asking(upstream: LoopbackUpstream, clock: Clock) -> None:
    """A reply that is never silent for too long is ended when its time as a whole is over, and not before."""
    pauses = [Pause() for _ in range(6)]
    upstream.always(Sse([step for pause in pauses for step in (said("x"), pause)]))
    pieces: list[Piece] = []
    async with endpoint(upstream.base_url) as made, made.open(route(1000, PATIENT), asking(stream=True)) as reply:
        for pause in pauses[:4]:
            pieces += await reply.read()
            await clock.leap(220)
            pause.release()
        pieces += await reply.read()
        reading = asyncio.create_task(reply.read())
        await asyncio.sleep(0)
        await clock.leap(119)
        assert not reading.done()
        await clock.leap(2)
        with pytest.raises(Fault) as failure:
            await reading
    assert failure.value.kind is FaultKind.OVERLONG
    assert "".join(piece.content for piece in pieces) == "xxxxx"
    for pause in pauses:
        pause.release()


@pytest.mark.parametrize(("max_tokens", "route_tokens"), [(10, 1000), (None, 10), (50, 10)])
async def test_a_stream_of_far_more_events_than_tokens_is_ended(
    upstream: LoopbackUpstream, max_tokens: int | None, route_tokens: int
) -> None:
    """An upstream that does not keep its output limit is ended by the number of its events, within one read of it."""
    upstream.always(Endless([said("x")]))
    pieces, kind = await hear(upstream, route(route_tokens), asking(max_tokens, stream=True))
    most = 10 * EVENTS_PER_TOKEN + EVENTS_MORE
    assert kind is FaultKind.OVERLONG
    assert most < len(pieces) < most + 5000
    await asyncio.to_thread(upstream.wait_for_disconnect)


@pytest.mark.parametrize("more", [0, 1])
async def test_the_bound_of_events_is_exact(upstream: LoopbackUpstream, more: int) -> None:
    """As many events as the bound has are good; with one more the reply has to be at its end."""
    wanted, pause, pieces = 10 * EVENTS_PER_TOKEN + EVENTS_MORE + more, Pause(), list[Piece]()
    upstream.always(Sse([*[said("x")] * wanted, pause, FINISH]))
    async with (
        asyncio.timeout(WAIT_S),
        endpoint(upstream.base_url) as made,
        made.open(route(), asking(10, stream=True)) as reply,
    ):
        while len(pieces) < wanted:
            pieces += await reply.read()
        pause.release()
        if more:
            with pytest.raises(Fault, match=FaultKind.OVERLONG.value):
                await reply.read()
        else:
            await read_into(pieces, reply)
            assert pieces[-1].finish_reason == "stop"


@pytest.mark.parametrize("reply", [Good("word " * 5000), Good("x" * 1_000_000)], ids=["many words", "a long one"])
async def test_long_answers_within_their_limit_are_whole(upstream: LoopbackUpstream, reply: Reply) -> None:
    """A long answer is no endless one."""
    upstream.always(reply)
    pieces, kind = await hear(upstream, route(131_072), asking(6000, stream=True))
    assert kind is None
    assert isinstance(reply, Good)
    assert "".join(piece.content for piece in pieces) == reply.text


@pytest.mark.parametrize("dialect", ["plain", "openai", "openrouter"])
async def test_an_answer_to_go_on_with(upstream: LoopbackUpstream, dialect: str) -> None:
    """What was begun is the last message, of the assistant, letter by letter; the upstream is told to go on with it."""
    begun = 'She said: "né\u2028\\n'
    ask = Ask([MESSAGE], {"temperature": Raw(b"0.50")}, 40, stream=True, begun=begun)
    async with (
        asyncio.timeout(WAIT_S),
        endpoint(upstream.base_url, dialect=dialect) as made,
        made.open(route(), ask) as reply,
    ):
        await read_into([], reply)
    body = upstream.requests[0].json
    assert body["messages"] == [msgspec.json.decode(MESSAGE), {"role": "assistant", "content": begun}]
    assert body["continue_final_message"] is True
    assert body["add_generation_prompt"] is False
    assert body["temperature"] == 0.5
    assert bytes(MESSAGE) in upstream.requests[0].body


async def test_an_answer_from_the_start(upstream: LoopbackUpstream) -> None:
    """Where nothing was begun, no field speaks of going on."""
    await hear(upstream, route(), asking(stream=True))
    body = upstream.requests[0].json
    assert len(body["messages"]) == 1
    assert not {"continue_final_message", "add_generation_prompt"} & body.keys()
