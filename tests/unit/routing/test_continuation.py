"""A stream that breaks off and goes on elsewhere: what the next route is asked, how it is counted, and when not."""

import asyncio
import io
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest
from msgspec import Raw

from cadenza.core.records import Plan, Route, Usage
from cadenza.core.tokens import OUTPUT_TOKENS_MIN, count_tokens
from cadenza.gateway.compose import Prompt
from cadenza.observe import Observer, make_log
from cadenza.routing.continuation import open_reply
from cadenza.routing.dispatch import Dispatcher
from cadenza.routing.health import FAULTS_TO_REST
from cadenza.upstreams.base import Ask, Fault, FaultKind, OpenReply, PassOn, Piece, Probe
from tests.unit.gateway.prompts import prompt_of

KEY = "key_a"
CUT = Fault(FaultKind.TRUNCATED)
PLAIN = Ask([Raw(b'{"role":"user","content":"Go."}')], {}, 100, stream=True, prompt_tokens=50)
FINISH = Piece(finish_reason="stop")
Told = Sequence[Piece | Fault]


class Teller:
    """A reply that says its pieces one read at a time, and breaks off where a fault is among them."""

    def __init__(self, told: Told) -> None:
        self._left = deque(told)

    async def read(self, pass_on: PassOn | None = None) -> list[Piece]:
        if not self._left:
            return []
        told = self._left.popleft()
        if isinstance(told, Fault):
            raise told
        return [told]


class Tellers:
    """An upstream that tells each who asks the next of its stories, and keeps what it was asked."""

    def __init__(self, *stories: Told | Fault) -> None:
        self.asked: list[Ask] = []
        self.open_replies = 0
        self._stories = deque(stories)

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    async def retire(self) -> None:
        """Nothing to stop."""

    async def probe(self) -> Probe:
        return Probe(reachable=True, detail="answers")

    @asynccontextmanager
    async def open(self, _route: Route, ask: Ask) -> AsyncIterator[OpenReply]:
        self.asked.append(ask)
        story = self._stories.popleft()
        if isinstance(story, Fault):
            raise story
        self.open_replies += 1
        try:
            yield Teller(story)
        finally:
            self.open_replies -= 1


class Story:
    """Routes tried one after the other, of which all but the first can go on with an answer."""

    def __init__(self, *upstreams: Tellers, window: int = 10_000, ceiling: int = 100) -> None:
        self.upstreams = {f"teller-{number}": upstream for number, upstream in enumerate(upstreams)}
        observer = Observer(make_log(io.StringIO()))
        self.metrics = observer.metrics
        self.dispatcher = Dispatcher(self.upstreams, observer, ceiling)
        self.plan = Plan.of(
            "forte",
            tuple(
                Route(name, "m", window if number else 10_000, 1000, number, continues=number > 0)
                for number, name in enumerate(self.upstreams)
            ),
        )

    async def hear(self, ask: Ask = PLAIN, prompt: Prompt | None = None) -> tuple[list[Piece], str, Fault | None]:
        """Every piece, the last route, and the fault that the relay would have to tell."""
        pieces, fault = list[Piece](), None
        async with open_reply(self.dispatcher, self.plan, ask, KEY, prompt) as reply:
            try:
                while read := await reply.read():
                    pieces += read
            except Fault as broken:
                fault = broken
            provider = reply.route.provider
        assert sum(upstream.open_replies for upstream in self.upstreams.values()) == 0
        assert all(self.dispatcher.healths.of(route).in_flight == 0 for route in self.plan.routes)
        return pieces, provider, fault


def says(*texts: str) -> list[Piece]:
    return [Piece(text, has_begun=True) for text in texts]


def counted(prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> Piece:
    return Piece(usage=Usage(prompt_tokens, completion_tokens, cached_tokens))


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.content for piece in pieces)


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind is not FaultKind.REFUSED])
async def test_the_next_route_goes_on_where_the_first_broke_off(kind: FaultKind) -> None:
    """Whatever broke it off: the next route is given what was said, and its answer follows as if nothing had been."""
    first = Tellers([*says("Once upon", " a time"), Fault(kind)])
    second = Tellers([*says(" there was", " a fox."), FINISH, counted(70, 9)])
    pieces, provider, fault = await Story(first, second).hear()
    assert (text_of(pieces), provider, fault) == ("Once upon a time there was a fox.", "teller-1", None)
    [ask] = second.asked
    said_tokens = count_tokens("Once upon a time")
    assert ask == msgspec.structs.replace(
        PLAIN, begun="Once upon a time", prompt_tokens=50 + said_tokens, max_tokens=100 - said_tokens
    )


async def test_one_prompt_and_one_answer_are_counted() -> None:
    """What was said before the seam is taken from the last route's prompt and added to its output."""
    second = Tellers([*says(" there was a fox."), FINISH, counted(70, 9, cached_tokens=60)])
    pieces, _, _ = await Story(Tellers([*says("Once upon a time"), CUT]), second).hear()
    said_tokens = count_tokens("Once upon a time")
    assert pieces[-1].usage == Usage(70 - said_tokens, 9 + said_tokens, 60, estimated=True)


async def test_the_first_routes_count_of_the_prompt_is_kept() -> None:
    """Where the first route had counted the prompt, its count is the one, and no more of it is cached than it has."""
    first = Tellers([*says("Once upon a time"), counted(40, 3), CUT])
    second = Tellers([*says(" there was a fox."), FINISH, counted(70, 9, cached_tokens=60)])
    pieces, _, _ = await Story(first, second).hear()
    assert pieces[-1].usage == Usage(40, 9 + count_tokens("Once upon a time"), 40, estimated=True)


async def test_two_seams() -> None:
    """A continuation that breaks off is continued by the third, which is given all that was said by both."""
    first = Tellers([*says("One"), CUT])
    second = Tellers([*says(" two"), CUT])
    third = Tellers([*says(" three."), FINISH, counted(60, 5)])
    story = Story(first, second, third)
    pieces, provider, fault = await story.hear()
    assert (text_of(pieces), provider, fault) == ("One two three.", "teller-2", None)
    assert [ask.begun for ask in (*second.asked, *third.asked)] == ["One", "One two"]
    said_tokens = count_tokens("One two")
    assert pieces[-1].usage == Usage(60 - said_tokens, 5 + said_tokens, estimated=True)
    for provider in ("teller-1", "teller-2"):
        assert story.metrics.registry.get_sample_value("cadenza_continued_total", {"provider": provider}) == 1


async def test_a_route_that_broke_off_is_not_asked_again() -> None:
    """Each route has one part of an answer: when the last has broken off, the stream ends with its fault."""
    first, second = Tellers([*says("One"), CUT]), Tellers([*says(" two"), Fault(FaultKind.MALFORMED)])
    pieces, _, fault = await Story(first, second).hear()
    assert text_of(pieces) == "One two"
    assert fault is not None
    assert fault.kind is FaultKind.MALFORMED
    assert [len(first.asked), len(second.asked)] == [1, 1]


async def test_a_continuation_that_does_not_open_leads_to_the_next() -> None:
    """A route that fails before its first word is passed over as ever; the next one goes on."""
    second, third = Tellers(Fault(FaultKind.FAILED, 500)), Tellers([*says(" two."), FINISH])
    pieces, provider, fault = await Story(Tellers([*says("One"), CUT]), second, third).hear()
    assert (text_of(pieces), provider, fault) == ("One two.", "teller-2", None)


@pytest.mark.parametrize(
    "refusal", [Fault(FaultKind.FAILED, 500), Fault(FaultKind.REFUSED, 400), Fault(FaultKind.BUSY)]
)
async def test_where_none_goes_on_the_first_fault_stays(refusal: Fault) -> None:
    """A continuation that is refused changes nothing: the client hears of the break, as without it."""
    pieces, _, fault = await Story(Tellers([*says("One"), CUT]), Tellers(refusal)).hear()
    assert text_of(pieces) == "One"
    assert fault is CUT


@pytest.mark.parametrize(
    "ask",
    [
        msgspec.structs.replace(PLAIN, stream=False),
        msgspec.structs.replace(PLAIN, tools={"tools": Raw(b"[]")}),
        msgspec.structs.replace(PLAIN, sampling={"response_format": Raw(b"{}")}),
    ],
    ids=["whole", "tools", "response_format"],
)
async def test_what_is_not_continued(ask: Ask) -> None:
    """A whole reply, one with tools and one of a given form end where they break off."""
    second = Tellers([*says(" two."), FINISH])
    pieces, _, fault = await Story(Tellers([*says("One"), CUT]), second).hear(ask)
    assert (text_of(pieces), fault) == ("One", CUT)
    assert second.asked == []


async def test_an_answer_that_used_up_its_limit_is_not_continued() -> None:
    """Where nothing is left of max_tokens there is nothing to go on with."""
    second = Tellers([*says(" two."), FINISH])
    ask = msgspec.structs.replace(PLAIN, max_tokens=count_tokens("One two three"))
    _, _, fault = await Story(Tellers([*says("One two three"), CUT]), second).hear(ask)
    assert fault is CUT
    assert second.asked == []


async def test_a_request_without_a_limit_is_continued_without_one() -> None:
    """Where the client set no limit, the next route is sent none."""
    second = Tellers([*says(" two."), FINISH])
    await Story(Tellers([*says("One"), CUT]), second).hear(msgspec.structs.replace(PLAIN, max_tokens=None))
    assert second.asked[0].max_tokens is None


async def test_a_window_too_small_for_what_was_said_is_passed_over() -> None:
    """A route that holds the prompt but not what was said besides is not asked."""
    text = " word" * 200
    second = Tellers([*says(" end."), FINISH])
    _, _, fault = await Story(Tellers([*says(text), CUT]), second, window=50 + 200 + OUTPUT_TOKENS_MIN - 1).hear(
        msgspec.structs.replace(PLAIN, max_tokens=1000)
    )
    assert fault is CUT
    assert second.asked == []


@pytest.mark.parametrize(("window", "is_continued"), [(50 + 200 + OUTPUT_TOKENS_MIN, True), (265, False)])
async def test_whether_a_window_has_room_is_told_by_the_count(window: int, is_continued: bool) -> None:
    """A prompt of which only the bytes were known is counted before a route is passed over for its sake."""
    second, prompt = Tellers([*says(" end."), FINISH]), prompt_of(50, 400)
    ask = msgspec.structs.replace(PLAIN, max_tokens=1000, prompt_tokens=prompt.most_tokens)
    story = Story(Tellers([*says(" word" * 200), CUT]), second, window=window)
    _, _, fault = await story.hear(ask, prompt)
    assert fault is (None if is_continued else CUT)
    assert [ask.prompt_tokens for ask in second.asked] == [250] * is_continued


async def test_nothing_said_is_asked_anew() -> None:
    """A route that breaks off before any text leaves a question as it was: nothing is begun, nothing is counted off."""
    second = Tellers([*says("All."), FINISH, counted(44, 2)])
    pieces, _, _ = await Story(Tellers([Piece(has_begun=True), CUT]), second).hear()
    assert second.asked == [PLAIN]
    assert pieces[-1].usage == Usage(44, 2)


async def test_without_a_retry_left_nothing_is_continued() -> None:
    """Continuing is a retry, and has the budget of the process."""
    second = Tellers([*says(" two."), FINISH])
    story = Story(Tellers([*says("One"), CUT]), second, ceiling=1)
    assert story.dispatcher.may_retry()
    _, _, fault = await story.hear()
    assert fault is CUT


async def test_cuts_of_continued_streams_count_against_the_route_that_broke() -> None:
    """A route that always breaks off rests, though its clients never noticed; who went on is well."""
    broken: Told = [*says("One"), CUT]
    whole: Told = [*says(" two."), FINISH]
    first, second = Tellers(*[broken] * FAULTS_TO_REST), Tellers(*[whole] * FAULTS_TO_REST)
    story = Story(first, second)
    for _ in range(FAULTS_TO_REST):
        await story.hear()
    assert [story.dispatcher.healths.of(route).is_down for route in story.plan.routes] == [True, False]


async def test_leaving_while_the_next_route_opens_leaves_nothing_open() -> None:
    """A client that goes away at the seam leaves no reply open and no place taken."""

    class Silent(Tellers):
        @asynccontextmanager
        async def open(self, _route: Route, ask: Ask) -> AsyncIterator[OpenReply]:
            self.asked.append(ask)
            await asyncio.Event().wait()
            yield Teller([])

    second = Silent()
    story = Story(Tellers([*says("One"), CUT]), second)
    task = asyncio.create_task(story.hear())
    while not second.asked:  # noqa: ASYNC110 the next turns of the loop bring it there
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(upstream.open_replies == 0 for upstream in story.upstreams.values())
    assert all(story.dispatcher.healths.of(route).in_flight == 0 for route in story.plan.routes)
