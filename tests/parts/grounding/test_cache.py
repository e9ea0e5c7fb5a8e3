"""Results are kept for minutes, in memory."""

import asyncio
import gc
import hashlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from cadenza.core.bounded_cache import ExpiringCache
from cadenza.parts.grounding.search.cache import RESULT_BOUNDS, ResultCache
from cadenza.parts.grounding.search.records import EngineFailed, Hit
from tests.parts.grounding.scripted_engine import HITS, ScriptedEngine, SecondsClock
from tests.unit.http.raw_client import until

OTHER = [Hit("https://b.example/", "Other", "Other")]


@pytest.fixture
def clock() -> SecondsClock:
    return SecondsClock()


@pytest.fixture
async def cache(clock: SecondsClock) -> AsyncIterator[ResultCache]:
    kept = ResultCache(clock)
    yield kept
    kept.clear()


@pytest.fixture
async def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.mark.parametrize("hits", [HITS, []])
async def test_a_query_is_asked_once(cache: ResultCache, engine: ScriptedEngine, hits: list[Hit]) -> None:
    """The second time, the results come from memory, also that there are none. Each request has its own list."""
    engine.hits = hits
    for _ in range(3):
        found = await cache.search(engine, "\ud800", 5)  # half a pair of surrogates, which JSON can carry
        assert found == hits
        found.clear()
    assert engine.asked == ["\ud800"]


async def test_results_are_kept_for_five_minutes(
    cache: ResultCache, engine: ScriptedEngine, clock: SecondsClock
) -> None:
    """After five minutes the engine is asked again, however often it was asked for them in between."""
    await cache.search(engine, "q", 5)
    clock.advance(299.9)
    await cache.search(engine, "q", 5)
    assert len(engine.asked) == 1
    clock.advance(0.1)
    engine.hits = OTHER
    assert await cache.search(engine, "q", 5) == OTHER


async def test_engine_query_and_count_tell_searches_apart(cache: ResultCache, engine: ScriptedEngine) -> None:
    """Another engine, another query and another count are other searches."""
    other = ScriptedEngine("other")
    other.hits = OTHER
    assert await cache.search(engine, "q", 5) == HITS
    assert await cache.search(other, "q", 5) == OTHER
    await cache.search(engine, "Q", 5)
    await cache.search(engine, "q", 4)
    assert len(engine.asked) == 3


async def test_failures_are_not_kept(cache: ResultCache, engine: ScriptedEngine) -> None:
    """After a failure the next request asks again."""
    engine.failure = lambda: EngineFailed("timeout")
    with pytest.raises(EngineFailed, match="timeout"):
        await cache.search(engine, "q", 5)
    engine.failure = None
    assert await cache.search(engine, "q", 5) == HITS


async def test_the_query_is_not_kept(cache: ResultCache, engine: ScriptedEngine) -> None:
    """Once a search has ended, nothing that the cache refers to has the query in it; its digest is the key."""
    query = "a query that stands nowhere else"
    await cache.search(engine, query, 5)
    engine.asked.clear()
    reachable, waiting = list[object](), gc.get_referents(cache)
    while waiting:
        each = waiting.pop()
        reachable.append(each)
        if isinstance(each, dict | list | tuple | msgspec.Struct | ExpiringCache):
            waiting += gc.get_referents(each)
    assert hashlib.sha256(f"scripted\0{5}\0{query}".encode()).digest() in reachable
    assert query not in [each for each in reachable if isinstance(each, str)]


async def test_bytes_are_bounded(clock: SecondsClock, engine: ScriptedEngine) -> None:
    """The cache never holds more bytes than it may, and results that are too large alone are not kept."""
    bounds = msgspec.structs.replace(RESULT_BOUNDS, bytes_max=20_000)
    cache = ResultCache(clock, bounds)
    engine.hits = [Hit("https://a.example/", "T", "ü" * 3000)]
    for number in range(50):
        await cache.search(engine, str(number), 5)
        assert 0 < cache.size_bytes <= bounds.bytes_max
    assert 2 <= len(cache) <= 6
    engine.hits = [Hit("https://a.example/", "T", "x" * 30_000)]
    assert len(await cache.search(engine, "large", 5)) == 1
    assert 2 <= len(cache) <= 6
    cache.clear()
    assert (len(cache), cache.size_bytes) == (0, 0)


async def test_old_results_go_by_themselves(clock: SecondsClock, engine: ScriptedEngine) -> None:
    """Nobody has to ask for old results to be dropped."""
    cache = ResultCache(clock, msgspec.structs.replace(RESULT_BOUNDS, sweep_s=0.01))
    await cache.search(engine, "q", 5)
    clock.advance(300)
    await until(lambda: len(cache) == 0)
    assert cache.size_bytes == 0
    cache.clear()


async def test_number_of_searches_is_bounded(clock: SecondsClock, engine: ScriptedEngine) -> None:
    """Beyond so many searches at once a further one fails at once; one that ends, however, leaves its place."""
    cache = ResultCache(clock, searches_max=2)
    engine.hold()
    first, second = (asyncio.create_task(cache.search(engine, query, 5)) for query in "ab")
    await until(lambda: len(engine.asked) == 2)
    with pytest.raises(EngineFailed, match="crowded"):
        await cache.search(engine, "c", 5)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    engine.release()
    assert await second == HITS
    assert await asyncio.gather(*(cache.search(engine, query, 5) for query in "cd")) == [HITS] * 2
    cache.clear()


async def test_an_age_of_zero_keeps_nothing(clock: SecondsClock) -> None:
    """A limit of 0 seconds: what was found is gone at once."""
    cache = ResultCache(clock, RESULT_BOUNDS.for_age(0))
    cache.put("a question", (), 10)
    assert (len(cache), cache.size_bytes) == (0, 0)
    cache.clear()
