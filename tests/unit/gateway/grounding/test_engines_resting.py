"""An engine that fails is left alone for a while."""

import asyncio
import math

import pytest

from cadenza.gateway.grounding.search.engines.base import EngineBusy
from cadenza.gateway.grounding.search.engines.resting import RestingEngine
from cadenza.gateway.grounding.search.records import EngineFailed, Hit
from tests.unit.gateway.grounding.engine_peer import answer, asking, failure_of, reply
from tests.unit.gateway.grounding.scripted_engine import HITS, ScriptedEngine, SecondsClock
from tests.unit.http.peer import always, until


def timeout() -> EngineFailed:
    return EngineFailed("timeout")


class Trial:
    """An engine, its clock, and the circuit between them."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine()
        self.clock = SecondsClock()
        self.resting = RestingEngine(self.engine, self.clock)

    async def fail(self, times: int) -> None:
        self.engine.failure = timeout
        for _ in range(times):
            assert await failure_of(self.resting) == "timeout"

    async def works(self) -> bool:
        """Whether a search reaches the engine now, which answers."""
        self.engine.failure = None
        asked = len(self.engine.asked)
        try:
            return await self.resting.search("q", 5) == HITS
        except EngineFailed:
            return len(self.engine.asked) > asked


@pytest.fixture
async def trial() -> Trial:
    return Trial()


async def test_two_failures_change_nothing(trial: Trial) -> None:
    """After two failures the engine is asked as before."""
    await trial.fail(2)
    assert await trial.works()


async def test_three_failures_rest_the_engine(trial: Trial) -> None:
    """After three failures in a row it is not asked for 30 s."""
    await trial.fail(3)
    assert not await trial.works()
    trial.clock.advance(29.9)
    assert not await trial.works()
    assert len(trial.engine.asked) == 3
    trial.clock.advance(0.1)
    assert await trial.works()


async def test_an_answer_ends_the_row(trial: Trial) -> None:
    """Failures with an answer between them are not in a row."""
    for _ in range(3):
        await trial.fail(2)
        assert await trial.works()


async def test_one_search_tries_after_the_rest(trial: Trial) -> None:
    """After a rest one search goes to the engine; the others do not wait for it."""
    await trial.fail(3)
    trial.clock.advance(30)
    trial.engine.failure = None
    trial.engine.hold()
    first = asyncio.create_task(trial.resting.search("first", 5))
    await until(lambda: trial.engine.asked[-1] == "first")
    assert await failure_of(trial.resting) == "resting"
    trial.engine.release()
    assert await first == HITS
    assert await trial.works()


async def test_a_failed_try_rests_again(trial: Trial) -> None:
    """One failure after a rest begins the next rest."""
    await trial.fail(3)
    trial.clock.advance(30)
    await trial.fail(1)
    trial.clock.advance(29.9)
    assert not await trial.works()
    trial.clock.advance(0.1)
    assert await trial.works()


async def test_a_cancelled_try_lets_the_next_one_try(trial: Trial) -> None:
    """A try whose request is cancelled does not leave the engine alone for ever."""
    await trial.fail(3)
    trial.clock.advance(30)
    trial.engine.hold()
    first = asyncio.create_task(trial.resting.search("first", 5))
    await until(lambda: trial.engine.asked[-1] == "first")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    trial.engine.release()
    assert await trial.works()


async def test_refused_queries_do_not_rest_the_engine(trial: Trial) -> None:
    """A client cannot take the engine from others by queries that it refuses."""
    trial.engine.failure = lambda: EngineFailed("refused")
    for _ in range(10):
        assert await failure_of(trial.resting) == "refused"
    assert await trial.works()


async def test_our_own_faults_do_not_rest_the_engine(trial: Trial) -> None:
    """A process without files says nothing about the engine."""
    trial.engine.failure = lambda: EngineFailed("no_files")
    for _ in range(10):
        assert await failure_of(trial.resting) == "no_files"
    assert await trial.works()


@pytest.mark.parametrize(
    ("asked_s", "rest_s"), [(None, 30.0), (7.0, 7.0), (0.0, 1.0), (0.2, 1.0), (1e9, 3600.0), (math.inf, 3600.0)]
)
async def test_a_busy_engine_rests_at_once(trial: Trial, asked_s: float | None, rest_s: float) -> None:
    """It rests for the time that it asks for, within bounds, after the first such answer."""
    trial.engine.failure = lambda: EngineBusy(asked_s)
    assert await failure_of(trial.resting) == "busy"
    trial.clock.advance(rest_s - 0.01)
    assert not await trial.works()
    trial.clock.advance(0.01)
    assert await trial.works()


class SlowThenBusy(ScriptedEngine):
    """Answers the query `early` when it is released, and any other one at once: it is busy."""

    async def search(self, query: str, count: int) -> list[Hit]:
        if query == "early":
            return await super().search(query, count)
        raise EngineBusy(60.0)


async def test_an_answer_from_before_does_not_end_a_rest() -> None:
    """A search that began before the engine was busy does not wake it when it ends."""
    engine, clock = SlowThenBusy(), SecondsClock()
    resting = RestingEngine(engine, clock)
    engine.hold()
    early = asyncio.create_task(resting.search("early", 5))
    await until(lambda: bool(engine.asked))
    assert await failure_of(resting, "late") == "busy"
    engine.release()
    assert await early == HITS
    clock.advance(59)
    assert await failure_of(resting) == "resting"


async def test_closing_closes_the_engine(trial: Trial) -> None:
    """The engine's connections are closed with it."""
    await trial.resting.close()
    assert trial.engine.is_closed


async def test_retry_after_on_the_wire() -> None:
    """An engine that answers 429 is not asked again until its Retry-After is over."""
    clock = SecondsClock()
    async with asking("searxng", always(reply(b"", "429 Too Many Requests", more="retry-after: 90\r\n"))) as (
        engine,
        peer,
    ):
        resting = RestingEngine(engine, clock)
        assert await failure_of(resting) == "busy"
        clock.advance(89)
        assert await failure_of(resting) == "resting"
        assert peer.requests_per_visit == [1]
        clock.advance(1)
        assert await failure_of(resting) == "busy"
        assert peer.requests_per_visit == [2]


async def test_a_good_engine_stays_reachable() -> None:
    """The circuit passes on the hits of a real exchange."""
    good = always(reply(answer("searxng", [{"url": "https://a.example/"}])))
    async with asking("searxng", good) as (engine, _):
        resting = RestingEngine(engine, SecondsClock())
        assert [hit.url for hit in await resting.search("q", 5)] == ["https://a.example/"]
        assert resting.name == "searxng"
