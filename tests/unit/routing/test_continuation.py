"""A stream that breaks off and continues elsewhere: what the next route is asked, how it is counted, and when not."""

import asyncio

import msgspec
import pytest
from msgspec import Raw

from cadenza.core.breaker import FAULTS_TO_OPEN
from cadenza.core.faults import FaultKind
from cadenza.core.records import Route
from cadenza.core.tokens import OUTPUT_TOKENS_MIN
from cadenza.routing.dispatch import Dispatch
from cadenza.upstreams.base import Ask, Collector, Fault, Piece
from tests.unit.routing.scripted_upstreams import (
    KEY,
    REQUEST_ID,
    Answer,
    ReplyScript,
    ScriptedRoutes,
    ScriptedUpstream,
    prompt_of,
)

BREAK = Fault(FaultKind.TRUNCATED)
PLAIN = Ask([Raw(b'{"role":"user","content":"Go."}')], {}, 100, stream=True, prompt_tokens=50)
FINISH = Piece(finish_reason="stop")


def says(*texts: str) -> list[Piece]:
    return [Piece(text, has_begun=True) for text in texts]


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.content for piece in pieces)


class ContinuingRoutes(ScriptedRoutes):
    """Routes tried one after the other. All but the first can continue an answer."""

    def __init__(self, *upstreams: ScriptedUpstream, window: int = 10_000, ceiling: int = 100) -> None:
        routes = [
            Route(f"provider-{number}", "m", window if number else 10_000, 1000, number, continues=number > 0)
            for number in range(len(upstreams))
        ]
        super().__init__(upstreams, routes, ceiling)

    async def read(self, ask: Ask = PLAIN, prompt_bytes: int = 0) -> tuple[str, Fault | None]:
        """The text that the client gets, and the fault that the stream ends with."""
        collector, fault = Collector(), None
        prompt = prompt_of(PLAIN.prompt_tokens, prompt_bytes)
        wanted = Dispatch(self.plan, ask, prompt, self.upstreams, KEY, REQUEST_ID)
        async with self.open_dispatch(wanted) as reply:
            try:
                await reply.deliver(collector)
            except Fault as broken:
                fault = broken
        assert self.open_replies == 0
        assert self.in_flight == 0
        return text_of(collector.pieces), fault


async def test_a_fault_in_a_stream_is_logged_with_the_request_id() -> None:
    """Also a fault that the client never sees is a log line with the request id and the provider."""
    routes = ContinuingRoutes(ScriptedUpstream([*says("One"), BREAK]), ScriptedUpstream([*says(" two."), FINISH]))
    await routes.read()
    [line] = routes.log_lines
    assert (line["request_id"], line["provider"], line["kind"]) == (REQUEST_ID, "provider-0", "truncated")


async def test_if_a_continuation_does_not_open_the_next_route_is_asked() -> None:
    """A route that fails before its first token is passed over, and the next one continues the answer."""
    second, third = ScriptedUpstream(Fault(FaultKind.FAILED, 500)), ScriptedUpstream([*says(" two."), FINISH])
    routes = ContinuingRoutes(ScriptedUpstream([*says("One"), BREAK]), second, third)
    assert await routes.read() == ("One two.", None)
    assert routes.answered_by == ["provider-0", "provider-2"]


@pytest.mark.parametrize(
    "refusal", [Fault(FaultKind.FAILED, 500), Fault(FaultKind.INVALID, 400), Fault(FaultKind.BUSY)]
)
async def test_if_no_route_continues_the_first_fault_stands(refusal: Fault) -> None:
    """The stream ends with the fault that broke it off, not with that of the continuation."""
    routes = ContinuingRoutes(ScriptedUpstream([*says("One"), BREAK]), ScriptedUpstream(refusal))
    assert await routes.read() == ("One", BREAK)


@pytest.mark.parametrize(
    ("window", "is_continued"), [(50 + 200 + OUTPUT_TOKENS_MIN, True), (50 + 200 + OUTPUT_TOKENS_MIN - 1, False)]
)
async def test_a_window_must_hold_the_prompt_and_the_text_so_far(window: int, is_continued: bool) -> None:
    """Prompt and text are counted, not bounded by their bytes, and must leave room for the shortest useful answer."""
    second = ScriptedUpstream([*says(" end."), FINISH])
    ask = msgspec.structs.replace(PLAIN, max_tokens=1000)
    routes = ContinuingRoutes(ScriptedUpstream([*says(" word" * 200), BREAK]), second, window=window)
    _, fault = await routes.read(ask, prompt_bytes=400)
    assert fault is (None if is_continued else BREAK)
    assert [ask.prompt_tokens for ask in second.asked] == [250] * is_continued


async def test_a_continuation_needs_a_retry_of_the_budget() -> None:
    """If the process has no retry left, the stream ends with its fault."""
    second = ScriptedUpstream([*says(" two."), FINISH])
    routes = ContinuingRoutes(ScriptedUpstream([*says("One"), BREAK]), second, ceiling=1)
    assert routes.dispatcher.may_retry()
    assert await routes.read() == ("One", BREAK)
    assert second.asked == []


async def test_a_continued_break_counts_against_the_route_that_broke_off() -> None:
    """A route that always breaks off rests, although no client noticed; the route that continues does not."""
    broken: ReplyScript = [*says("One"), BREAK]
    whole: ReplyScript = [*says(" two."), FINISH]
    routes = ContinuingRoutes(ScriptedUpstream(broken), ScriptedUpstream(whole))
    for _ in range(FAULTS_TO_OPEN):
        await routes.read()
    assert [routes.health(number).is_down for number in range(2)] == [True, False]


async def test_cancellation_while_the_next_route_opens_leaves_nothing_open() -> None:
    """A client that disconnects between two routes leaves no reply open and no place taken."""
    silent: Answer = asyncio.Event()
    second = ScriptedUpstream(silent)
    routes = ContinuingRoutes(ScriptedUpstream([*says("One"), BREAK]), second)
    task = asyncio.create_task(routes.read())
    async with asyncio.timeout(60):
        while not second.asked:  # noqa: ASYNC110 a count in a thread comes before it, and no event tells of it
            await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert routes.open_replies == 0
    assert routes.in_flight == 0
