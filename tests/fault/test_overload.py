"""Far more than can be served: what is served keeps its pace, the rest is told so at once, and nobody is crowded out.

$CADENZA_OVERLOAD_S makes the runs longer; the figures of each are shown.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby

import msgspec
import pytest

from tests.fault.crowd import Crowd, Manner
from tests.fault.fleet import EMAIL, Fleet, Node, wait_until
from tests.fault.load import Figures, Lines, Reply, chat_request, pinged
from tests.service import RouteSpec, ServiceSpec

SECONDS = float(os.environ.get("CADENZA_OVERLOAD_S") or 4.5)
SHORTER_S = SECONDS * 0.75
CREDIT_NANO = 10**13
CEILING = 16
REPLY_S = 0.3
PER_S = CEILING / REPLY_S  # what can be served
WIDE_CEILING = 64
CAPACITY = 12
QUICK_S = 0.1
LIMIT = r'cadenza_route_limit\{model="crowd",provider="crowd"\}'

HOPS = 5

Show = Callable[[object], None]

pytestmark = pytest.mark.timeout(120 + 3 * SECONDS)


class Stage(msgspec.Struct, frozen=True):
    """A service with one route, to one upstream."""

    crowd: Crowd
    fleet: Fleet
    node: Node


@contextmanager
def staged(manner: Manner, concurrency: int) -> Iterator[Stage]:
    with Crowd(manner) as crowd:
        routes = {"forte": [RouteSpec("crowd", "crowd")]}
        spec = ServiceSpec({"crowd": crowd.base_url}, routes, limits={"concurrency": concurrency})
        with Fleet("", CREDIT_NANO, spec) as fleet:
            yield Stage(crowd, fleet, fleet.start())


@pytest.fixture(scope="module")
def narrow() -> Iterator[Stage]:
    """A service that has few slots for an upstream that can take any number."""
    with staged(Manner(reply_s=REPLY_S, spread=0.3), CEILING) as stage:
        yield stage


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    """Figures are for people, whether the test fails or not."""

    def write(shown: object) -> None:
        with capsys.disabled():
            print(f"\n{shown}", end="")  # noqa: T201

    return write


def of_status(replies: Iterable[Reply], status: int) -> list[Reply]:
    return [reply for reply in replies if reply.status == status]


async def pace_of(lines: Lines, request: bytes) -> Figures:
    """With nothing else to do."""
    replies = [await lines.ask(request) for _ in range(5)]
    assert all(reply.is_served for reply in replies)
    return Figures.of(replies)


def check_prompt(served: Figures, refused: Figures, alone: Figures, lag: Figures) -> None:
    """Whoever is served is served as if alone, more or less; whoever is not hears it at once.

    Each has some hops between processes more than the ping that shows how slow the machine is just now.
    """
    assert served.p50_ms < 2 * alone.p50_ms + HOPS * lag.p50_ms
    assert served.p99_ms < 3 * alone.p50_ms + 250 + HOPS * lag.p99_ms
    assert refused.p50_ms < 50 + HOPS * lag.p50_ms
    assert refused.p99_ms < 250 + HOPS * lag.p99_ms


def test_three_times_the_ceiling_is_served_at_its_pace_or_refused_at_once(narrow: Stage, show: Show) -> None:
    """Of three times what can be served a third is, as fast as ever; the others get 429 at once, none times out."""
    plain, stream = (chat_request(narrow.fleet.key, stream=is_stream) for is_stream in (False, True))
    charges = narrow.fleet.books.charges

    async def run() -> tuple[Figures, list[Reply], Figures]:
        lines = Lines(narrow.node.port)
        alone = await pace_of(lines, plain)
        async with pinged(narrow.crowd.port, "/counts") as pings:
            replies = await lines.offer([plain, stream], 3 * PER_S, SECONDS)
        lines.close()
        return alone, replies, Figures.of(pings)

    alone, replies, lag = asyncio.run(run())
    served, refused = Figures.of(of_status(replies, 200)), Figures.of(of_status(replies, 429))
    show(f"3 x the ceiling: alone {alone}\n  served {served}\n  refused {refused}\n  lag {lag}")
    assert {reply.status for reply in replies} == {200, 429}
    assert all(reply.is_served for reply in of_status(replies, 200))
    assert all(int(reply.headers["retry-after-ms"]) > 0 for reply in of_status(replies, 429))
    check_prompt(served, refused, alone, lag)
    assert 0.6 * PER_S * SECONDS < served.count < 1.1 * PER_S * (SECONDS + REPLY_S)
    wait_until(lambda: narrow.node.metric("cadenza_slots_taken") == 0, "every slot being free")
    assert narrow.fleet.books.charges - charges == served.count + alone.count
    narrow.fleet.books.prove()


def test_modest_key_is_served_beside_a_greedy_one(narrow: Stage, show: Show) -> None:
    """Keys that ask for one place each get it most of the time, and at their next try where they were refused."""
    greedy = chat_request(narrow.fleet.key)
    keys = [narrow.fleet.cli("key", "create", "--account", EMAIL).stdout.strip() for _ in range(2)]

    async def run() -> tuple[list[Reply], list[list[Reply]]]:
        lines = Lines(narrow.node.port)
        crowding = asyncio.create_task(lines.insist(greedy, 3 * CEILING, SHORTER_S, refused_s=REPLY_S))
        await asyncio.sleep(REPLY_S)
        modest = (lines.insist(chat_request(key), 1, SHORTER_S - 2 * REPLY_S, REPLY_S) for key in keys)
        few = await asyncio.gather(*modest)
        many = await crowding
        lines.close()
        return many, few

    many, few = asyncio.run(run())
    tries = [reply for client in few for reply in client]
    few_served, many_served = of_status(tries, 200), of_status(many, 200)
    refusals = [
        [len(list(run)) for is_ok, run in groupby(client, lambda reply: reply.is_served) if not is_ok] for client in few
    ]
    show(
        f"2 modest keys, 1 client each: {len(few_served)} of {len(tries)} tries; {Figures.of(few_served)}; "
        f"refusals in a row {refusals}\n"
        f"  greedy key, {3 * CEILING} clients: {len(many_served)} of {len(many)} tries; {Figures.of(many_served)}; "
        f"refused {Figures.of(of_status(many, 429))}"
    )
    assert {reply.status for reply in (*tries, *many)} <= {200, 429}
    assert len(few_served) / len(tries) > max(0.45, 1.25 * len(many_served) / len(many))
    assert max(map(max, filter(None, refusals)), default=0) <= 3
    assert len(many_served) > 0.5 * (CEILING - 2) * SHORTER_S / REPLY_S
    narrow.fleet.books.prove()


class Pressure(msgspec.Struct, frozen=True):
    """The pace alone, the later half of the replies to very many clients, the route's limit and the lag meanwhile."""

    alone: Figures
    late: list[Reply]
    limits: list[int]
    lag: Figures


def under_pressure(stage: Stage, show: Show, seconds: float) -> Pressure:
    """As many clients as the whole ceiling, which is far beyond what the upstream can do."""
    request, limits = chat_request(stage.fleet.key), list[int]()

    async def watch() -> None:
        while True:
            limits.append(await asyncio.to_thread(stage.node.metric, LIMIT))
            await asyncio.sleep(seconds / 10)

    async def run() -> tuple[Figures, list[Reply], Figures]:
        lines = Lines(stage.node.port)
        alone = await pace_of(lines, request)
        watching = asyncio.create_task(watch())
        async with pinged(stage.crowd.port, "/counts") as pings:
            replies = await lines.insist(request, WIDE_CEILING, seconds, refused_s=0.5)
        watching.cancel()
        lines.close()
        return alone, replies, Figures.of(pings)

    alone, replies, lag = asyncio.run(run())
    show(
        f"capacity {CAPACITY}: alone {alone}\n  served {Figures.of(of_status(replies, 200))}\n"
        f"  refused {Figures.of(of_status(replies, 429))}\n  limits {limits}; lag {lag}"
    )
    assert {reply.status for reply in replies} == {200, 429}
    assert len(of_status(replies, 200)) > 0.5 * CAPACITY / QUICK_S * seconds
    stage.fleet.books.prove()
    return Pressure(alone, replies[len(replies) // 2 :], limits, lag)


def test_ceiling_follows_an_upstream_that_refuses(show: Show) -> None:
    """An upstream that refuses above its capacity is soon asked for no more, is kept busy, and the rest get 429."""
    with staged(Manner(reply_s=QUICK_S, capacity=CAPACITY), WIDE_CEILING) as stage:
        seen = under_pressure(stage, show, SHORTER_S)
        late = Figures.of(of_status(seen.late, 200))
        assert max(seen.limits[3:]) < 2 * CAPACITY
        assert stage.crowd.counts().refused < len(of_status(seen.late, 429))
        assert late.p50_ms < 3 * seen.alone.p50_ms + HOPS * seen.lag.p50_ms
        assert Figures.of(of_status(seen.late, 429)).p50_ms < 200 + HOPS * seen.lag.p50_ms


def test_ceiling_follows_an_upstream_that_queues(show: Show) -> None:
    """An upstream that only becomes slow above its capacity is asked for less, so that its queue does not grow."""
    with staged(Manner(reply_s=QUICK_S, capacity=CAPACITY, beyond="queues"), WIDE_CEILING) as stage:
        seen = under_pressure(stage, show, SECONDS)
        assert sum(seen.limits[-4:]) / 4 < 4 * CAPACITY
        assert of_status(seen.late, 429)
