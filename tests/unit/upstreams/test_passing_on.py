"""Text that is passed on in the moment in which it comes: with what is read it is the whole, in order and in time."""

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from cadenza.core.records import Route, Timeouts, Usage
from cadenza.upstreams.base import Fault, FaultKind, OpenReply, Piece
from cadenza.upstreams.openai import EVENTS_MORE, EVENTS_PER_TOKEN
from tests.loopback import USAGE, Close, Event, LoopbackUpstream, Pause, Reply, Request, Reset, Sse, Step, chunk
from tests.unit.http.peer import until
from tests.unit.upstreams.clock import Clock
from tests.unit.upstreams.test_openai import TIMEOUTS, WAIT_S, asking, endpoint, route

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])
on_asyncio = pytest.mark.asyncio(loop_factories=["asyncio"])  # the loop whose clock can be put forward

TOTAL_S = 0.3
HURRIED = Timeouts(connect_s=10, first_token_s=10, idle_s=10, total_s=TOTAL_S)
WORDS = [f"word{number} " for number in range(40)]
TEXT = "".join(WORDS)


def written(value: dict[str, Any]) -> bytes:
    """An event as upstreams write it: without spaces."""
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def said(text: str) -> bytes:
    return written(chunk({"content": text}))


FINISH = written(chunk(finish="stop"))
COUNTS = written(chunk(choices=[], usage=USAGE))


class Endless:
    """A stream whose only event is said for ever."""

    def __init__(self, event: bytes) -> None:
        self._event = event

    def steps(self, request: Request) -> Iterator[Step]:
        head, event, *_ = Sse([self._event]).steps(request)
        return itertools.chain([head], itertools.repeat(event))


class Hearing:
    """Who reads a reply: what it was passed, what it read, and both in the order in which they came."""

    def __init__(self, takes: Callable[[int], bool] = lambda _: True) -> None:
        self.passed: list[str] = []
        self.pieces: list[Piece] = []
        self.order: list[str] = []
        self._takes = takes
        self._asked = 0

    def pass_on(self, text: str) -> bool:
        self._asked += 1
        if not self._takes(self._asked):
            return False
        self.passed.append(text)
        self.order.append(text)
        return True

    async def read_once(self, reply: OpenReply) -> bool:
        pieces = await reply.read(self.pass_on)
        self.pieces += pieces
        self.order += [piece.content for piece in pieces]
        return bool(pieces)

    async def read_all(self, reply: OpenReply) -> FaultKind | None:
        try:
            while await self.read_once(reply):
                pass
        except Fault as fault:
            return fault.kind
        return None

    @property
    def text(self) -> str:
        return "".join(self.order)


async def hear(upstream: LoopbackUpstream, reply: Reply, hearing: Hearing, where: Route | None = None) -> Any:
    """The fault that ends it, or None. Who hears leaves at once after a fault."""
    upstream.always(reply)
    async with (
        asyncio.timeout(WAIT_S),
        endpoint(upstream.base_url) as made,
        made.open(where or route(), asking(stream=True)) as opened,
    ):
        return await hearing.read_all(opened)


async def hear_waiting(upstream: LoopbackUpstream, events: Sequence[Event], hearing: Hearing) -> FaultKind | None:
    """The reader waits already when the events come, after a first one that was read."""
    pause = Pause()
    upstream.always(Sse([said("First "), pause, *events]))
    async with (
        asyncio.timeout(WAIT_S),
        endpoint(upstream.base_url) as made,
        made.open(route(), asking(stream=True)) as opened,
    ):
        await hearing.read_once(opened)
        reading = asyncio.create_task(hearing.read_all(opened))
        await asyncio.to_thread(pause.wait_until_reached)
        pause.release()
        return await reading


async def test_ordinary_text_is_passed_on(upstream: LoopbackUpstream) -> None:
    """To a reader that waits, every ordinary text is passed on, one by one; the finish and the counts are read."""
    hearing = Hearing()
    assert await hear_waiting(upstream, [*map(said, WORDS), FINISH, COUNTS], hearing) is None
    assert hearing.passed == WORDS
    assert [piece.content for piece in hearing.pieces if piece.content] == ["First "]
    assert [piece.finish_reason for piece in hearing.pieces if piece.finish_reason] == ["stop"]
    assert [piece.usage for piece in hearing.pieces if piece.usage] == [Usage(11, 7, 3)]


async def test_without_a_taker_all_is_read(upstream: LoopbackUpstream) -> None:
    """A reader that passes nothing on reads the same text."""
    upstream.always(Sse([*map(said, WORDS), FINISH]))
    pieces: list[Piece] = []
    async with (
        asyncio.timeout(WAIT_S),
        endpoint(upstream.base_url) as made,
        made.open(route(), asking(stream=True)) as reply,
    ):
        while read := await reply.read():
            pieces += read
    assert "".join(piece.content for piece in pieces) == TEXT


TAKERS: dict[str, Callable[[int], bool]] = {
    "always": lambda _: True,
    "never": lambda _: False,
    "every other": lambda asked: bool(asked % 2),
    "one of five": lambda asked: not asked % 5,
    "four of five": lambda asked: bool(asked % 5),
    "then never": lambda asked: asked < 9,
    "then always": lambda asked: asked > 9,
}


@pytest.mark.parametrize("piece_bytes", [None, 40, 150], ids=lambda size: f"in {size}")
@pytest.mark.parametrize("takes", TAKERS.values(), ids=TAKERS)
async def test_what_is_passed_on_and_what_is_read_are_the_whole(
    upstream: LoopbackUpstream, takes: Callable[[int], bool], piece_bytes: int | None
) -> None:
    """Whatever the taker answers and however the bytes come, the text is whole, once, and in order."""
    hearing = Hearing(takes)
    events = [*map(said, WORDS), said('"quoted" \\ \n'), said(""), *map(said, WORDS), FINISH, COUNTS]
    kind = await hear(upstream, Sse(events, piece_bytes=piece_bytes), hearing)
    assert (kind, hearing.text) == (None, TEXT + '"quoted" \\ \n' + TEXT)
    assert hearing.pieces[-1].usage == Usage(11, 7, 3)


NOT_ORDINARY: dict[str, list[Event]] = {
    "two in one": [said("one ") + said("two ")],
    "one and a half": [said("one ") + said("two ")[:40], said("two ")[40:]],
    "split": [said("one ")[:60], said("one ")[60:], said("two ")[:-1], b"\n"],
    "split after data": [b"data: ", said("one two ")[6:]],
    "in two lines": [said("one two ").replace(b',"created"', b'\ndata: ,"created"')],
    "after a line of data": [b"data: \n", said("one two ")],
    "carriage returns": [said("one ").replace(b"\n", b"\r\n"), said("two ").replace(b"\n", b"\r")],
    "after a comment": [b": here\n\n" + said("one "), said("two ") + b": here\n\n"],
    "of another envelope": [written(chunk({"content": "one "}, more=1)), written(chunk({"content": "two "}, more=2))],
    "with a role": [written(chunk({"role": "assistant", "content": "one two "}))],
    "with counts": [written(chunk({"content": "one two "}, usage=USAGE))],
    "escaped": [said("one\ttwo ")],
}


@pytest.mark.parametrize("events", NOT_ORDINARY.values(), ids=NOT_ORDINARY)
async def test_what_is_not_ordinary_is_read(upstream: LoopbackUpstream, events: list[Event]) -> None:
    """An event that does not come alone and whole, or says more than its text, is read and not passed on."""
    hearing = Hearing()
    assert await hear_waiting(upstream, [*events, said("Last"), FINISH], hearing) is None
    assert set(hearing.passed) <= {"Last"}
    assert hearing.text.replace("\t", " ") == "First one two Last"


async def test_text_after_the_finish_is_read(upstream: LoopbackUpstream) -> None:
    """Behind a finish reason nothing is passed on any more."""
    hearing = Hearing()
    assert await hear_waiting(upstream, [said("one "), FINISH, said("two ")], hearing) is None
    assert hearing.passed == ["one "]


@on_asyncio
async def test_silence_after_passed_on_text_is_bounded(upstream: LoopbackUpstream, clock: Clock) -> None:
    """What is passed on is a sign of life, and `idle_s` after the last of it the reply is SILENT."""
    pauses = [Pause() for _ in range(4)]
    upstream.always(Sse([step for pause in pauses for step in (said("word "), pause)]))
    hearing, most_s = Hearing(), TIMEOUTS.idle_s
    async with (
        endpoint(upstream.base_url) as made,
        made.open(route(), asking(stream=True)) as reply,
    ):
        await hearing.read_once(reply)
        reading = asyncio.create_task(hearing.read_all(reply))
        for number, pause in enumerate(pauses[:-1], 2):
            await asyncio.to_thread(pause.wait_until_reached)
            await clock.leap(most_s - 5)
            assert not reading.done()
            pause.release()
            await until(lambda count=number: len(hearing.order) == count)  # type: ignore[misc]
        await clock.leap(most_s - 1)
        assert not reading.done()
        await clock.leap(2)
        assert await asyncio.wait_for(reading, WAIT_S) is FaultKind.TIMED_OUT
    assert hearing.passed == ["word "] * 3
    await asyncio.to_thread(upstream.wait_for_disconnect)
    for pause in pauses:
        pause.release()


async def test_passed_on_text_has_no_more_time_than_the_whole(upstream: LoopbackUpstream) -> None:
    """A stream that goes on for ever is ended after `total_s`, though it may be passed on."""
    hearing = Hearing()
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    kind = await hear(upstream, Endless(said("x")), hearing, route(131_072, HURRIED))
    assert (kind, loop.time() - started_s >= TOTAL_S - 0.01) == (FaultKind.OVERLONG, True)


async def test_passed_on_events_are_counted(upstream: LoopbackUpstream) -> None:
    """A stream of far more events than tokens is ended by their number, though they may be passed on."""
    hearing = Hearing()
    kind = await hear(upstream, Endless(said("x")), hearing, route(10))
    most = 10 * EVENTS_PER_TOKEN + EVENTS_MORE
    assert kind is FaultKind.OVERLONG
    assert most < len(hearing.text) < most + 5000
    await asyncio.to_thread(upstream.wait_for_disconnect)


@pytest.mark.parametrize("end", [Close(), Reset()], ids=["close", "reset"])
async def test_a_cut_after_passed_on_text_is_a_fault(upstream: LoopbackUpstream, end: Close | Reset) -> None:
    """A connection that ends after passed-on text, before a finish, is CUT; the text was passed on once."""
    hearing, pause = Hearing(), Pause()
    upstream.always(Sse([said("First "), said("one "), said("two "), pause, end]))
    async with endpoint(upstream.base_url) as made, made.open(route(), asking(stream=True)) as reply:
        reading = asyncio.create_task(hearing.read_all(reply))
        await until(lambda: hearing.text == "First one two ")
        pause.release()
        assert await asyncio.wait_for(reading, WAIT_S) is FaultKind.TRUNCATED
    assert hearing.text == "First one two "


async def test_an_end_without_a_finish_after_passed_on_text_is_a_fault(upstream: LoopbackUpstream) -> None:
    """A terminator that comes before any finish reason is CUT, whoever has the text."""
    hearing = Hearing()
    assert await hear_waiting(upstream, [said("one ")], hearing) is FaultKind.TRUNCATED
    assert (hearing.passed, hearing.text) == (["one "], "First one ")


async def test_an_error_after_passed_on_text_is_its_fault(upstream: LoopbackUpstream) -> None:
    """An error inside a stream is a fault of its kind after text was passed on."""
    hearing = Hearing()
    events = [said("one "), written({"error": {"code": 429}})]
    assert await hear_waiting(upstream, events, hearing) is FaultKind.BUSY
    assert hearing.text == "First one "


async def test_leaving_closes_the_connection(upstream: LoopbackUpstream) -> None:
    """Who leaves while text is passed on ends the upstream's work at once, and is passed nothing more."""
    hearing = Hearing()
    upstream.always(Endless(said("x")))
    async with endpoint(upstream.base_url) as made, made.open(route(131_072), asking(stream=True)) as reply:
        reading = asyncio.create_task(hearing.read_all(reply))
        await until(lambda: len(hearing.passed) > 10)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        passed = len(hearing.passed)
    await asyncio.to_thread(upstream.wait_for_disconnect)
    assert len(hearing.passed) == passed
