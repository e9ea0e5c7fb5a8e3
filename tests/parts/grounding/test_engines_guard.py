"""The circuit breaker of a search engine, and what the log says of it."""

import asyncio
import io
import json
import math

import pytest

from cadenza.parts.grounding.search.records import EngineFailed, Hit
from tests.parts.grounding.engine_peer import asking, failure_of, reply
from tests.parts.grounding.scripted_engine import HITS, ScriptedEngine, SecondsClock, guarded
from tests.unit.http.peer import always
from tests.unit.http.raw_client import until


def timeout() -> EngineFailed:
    return EngineFailed("timeout")


class Trial:
    """An engine, its clock, and the circuit between them."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine()
        self.clock = SecondsClock()
        self.written = io.StringIO()
        self.guarded = guarded(self.engine, self.clock, self.written)

    async def fail(self, times: int, reason: str = "timeout") -> None:
        self.engine.failure = lambda: EngineFailed(reason)
        for _ in range(times):
            assert await failure_of(self.guarded) == reason

    def said(self) -> list[tuple[str, str, str]]:
        """The lines of the log: level, event and reason. Each names the engine and has nothing of a query."""
        lines = [json.loads(line) for line in self.written.getvalue().splitlines()]
        assert all(line.keys() <= {"engine", "event", "level", "reason", "open_s", "timestamp"} for line in lines)
        assert all(line["engine"] == self.engine.name for line in lines)
        return [(line["level"], line["event"], line.get("reason", "")) for line in lines]

    async def works(self) -> bool:
        """Whether a search reaches the engine now, which answers."""
        self.engine.failure = None
        asked = len(self.engine.asked)
        try:
            return await self.guarded.search("q", 5) == HITS
        except EngineFailed:
            return len(self.engine.asked) > asked


@pytest.fixture
async def trial() -> Trial:
    return Trial()


async def test_three_failures_open_the_circuit(trial: Trial) -> None:
    """After three failures in a row it is not asked for 30 s."""
    await trial.fail(3)
    assert not await trial.works()
    trial.clock.advance(29.9)
    assert not await trial.works()
    assert len(trial.engine.asked) == 3
    trial.clock.advance(0.1)
    assert await trial.works()


async def test_one_search_is_the_trial(trial: Trial) -> None:
    """When the circuit is half-open, one search goes to the engine; the others do not wait for it."""
    await trial.fail(3)
    trial.clock.advance(30)
    trial.engine.failure = None
    trial.engine.hold()
    first = asyncio.create_task(trial.guarded.search("first", 5))
    await until(lambda: trial.engine.asked[-1] == "first")
    assert await failure_of(trial.guarded) == "resting"
    trial.engine.release()
    assert await first == HITS
    assert await trial.works()


async def test_a_cancelled_trial_lets_another_begin(trial: Trial) -> None:
    """A trial whose request is cancelled does not keep the circuit open for ever."""
    await trial.fail(3)
    trial.clock.advance(30)
    trial.engine.hold()
    first = asyncio.create_task(trial.guarded.search("first", 5))
    await until(lambda: trial.engine.asked[-1] == "first")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    trial.engine.release()
    assert await trial.works()


@pytest.mark.parametrize(
    ("asked_s", "rest_s"), [(None, 30.0), (7.0, 7.0), (0.0, 1.0), (0.2, 1.0), (1e9, 3600.0), (math.inf, 3600.0)]
)
async def test_a_busy_engine_opens_the_circuit_at_once(trial: Trial, asked_s: float | None, rest_s: float) -> None:
    """The first such answer opens it for the time that the engine asks for, within bounds."""
    trial.engine.failure = lambda: EngineFailed("busy", asked_s)
    assert await failure_of(trial.guarded) == "busy"
    trial.clock.advance(rest_s - 0.01)
    assert not await trial.works()
    trial.clock.advance(0.01)
    assert await trial.works()


class SlowThenBusy(ScriptedEngine):
    """Answers the query `early` when it is released, and any other one at once: it is busy."""

    async def search(self, query: str, count: int) -> list[Hit]:
        if query == "early":
            return await super().search(query, count)
        raise EngineFailed("busy", 60.0)


async def test_an_early_answer_does_not_close_the_circuit() -> None:
    """A search that began before the engine was busy does not close the circuit when it ends."""
    engine, clock = SlowThenBusy(), SecondsClock()
    behind = guarded(engine, clock)
    engine.hold()
    early = asyncio.create_task(behind.search("early", 5))
    await until(lambda: bool(engine.asked))
    assert await failure_of(behind, "late") == "busy"
    engine.release()
    assert await early == HITS
    clock.advance(59)
    assert await failure_of(behind) == "resting"


async def test_closing_closes_the_engine(trial: Trial) -> None:
    """The engine's connections are closed with it."""
    await trial.guarded.close()
    assert trial.engine.is_closed


async def test_retry_after_on_the_wire() -> None:
    """An engine that answers 429 is not asked again until its Retry-After is over."""
    clock = SecondsClock()
    async with asking("searxng", always(reply(b"", "429 Too Many Requests", more="retry-after: 90\r\n"))) as (
        engine,
        peer,
    ):
        behind = guarded(engine, clock)
        assert await failure_of(behind) == "busy"
        clock.advance(89)
        assert await failure_of(behind) == "resting"
        assert peer.requests_per_visit == [1]
        clock.advance(1)
        assert await failure_of(behind) == "busy"
        assert peer.requests_per_visit == [2]


FAILS = "the search engine fails"
WORKS_AGAIN = ("info", "the search engine works again", "")


async def test_an_outage_is_two_lines(trial: Trial) -> None:
    """The log says that the engine fails and why, and that it works again."""
    await trial.fail(3, "json_disabled")
    for _ in range(10):
        assert await failure_of(trial.guarded) == "resting"
        trial.clock.advance(30)
        await trial.fail(1, "json_disabled")
    assert trial.said() == [("warning", FAILS, "json_disabled")]
    trial.clock.advance(30)
    assert await trial.works()
    assert await trial.works()
    assert trial.said()[1:] == [WORKS_AGAIN]


async def test_another_reason_is_told(trial: Trial) -> None:
    """An engine that can be reached again, but refuses the key, leaves a second line."""
    await trial.fail(3, "unreachable")
    trial.clock.advance(90)
    await trial.fail(1, "key_refused")
    assert trial.said() == [("warning", FAILS, "unreachable"), ("warning", FAILS, "key_refused")]


async def test_an_engine_that_fails_now_and_then_is_told_once_a_minute(trial: Trial) -> None:
    """A failure between answers is not a line for each request."""
    for _ in range(30):
        await trial.fail(1)
        assert await trial.works()
        trial.clock.advance(1)
    assert trial.said() == [("warning", FAILS, "timeout"), WORKS_AGAIN]
    trial.clock.advance(60)
    await trial.fail(1)
    assert trial.said()[2:] == [("warning", FAILS, "timeout")]


async def test_a_circuit_that_stays_open_for_long_is_logged_at_once(trial: Trial) -> None:
    """A busy engine that asks for an hour is logged, even right after another warning."""
    await trial.fail(1)
    assert await trial.works()
    trial.engine.failure = lambda: EngineFailed("busy", 3600)
    assert await failure_of(trial.guarded) == "busy"
    assert trial.said()[2:] == [("warning", FAILS, "busy")]


@pytest.mark.parametrize("reason", ["refused", "no_files"])
async def test_faults_of_a_query_or_of_this_process_count_for_nothing(trial: Trial, reason: str) -> None:
    """They say nothing about the engine: a client cannot take it from others, and only the metrics count them."""
    await trial.fail(10, reason)
    assert trial.said() == []
    assert await trial.works()
