"""Far more load than can be served: admitted requests keep their pace, the others get 429 at once, and keys share.

Every claim about time is a ratio within one run, or an order of events. The figures of each run are shown.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby

import msgspec
import pytest

from tests.fault.upstream_process import Behaviour, UpstreamProcess
from tests.load import ConnectionPool, Latency, TimedReply, chat_request, pinged
from tests.service import Deployment, ServiceProcess, wait_until
from tests.service_config import RouteSpec, ServiceSpec

CREDIT_NANO = 10**13
CEILING = 8
REPLY_S = 0.3
SERVED = 120
TRIES = 14
HOPS = 5  # between processes, more than a ping has

Show = Callable[[object], None]

pytestmark = pytest.mark.timeout(600)


class Overload(msgspec.Struct, frozen=True):
    """A service with one route to one upstream."""

    upstream: UpstreamProcess
    deployment: Deployment
    process: ServiceProcess


@contextmanager
def overloaded(behaviour: Behaviour, concurrency: int) -> Iterator[Overload]:
    with UpstreamProcess(behaviour) as upstream:
        routes = {"forte": [RouteSpec("upstream", "upstream", silence_s=600.0)]}
        spec = ServiceSpec({"upstream": upstream.base_url}, routes, limits={"concurrency": concurrency})
        with Deployment(spec, CREDIT_NANO) as deployment:
            yield Overload(upstream, deployment, deployment.start())


@pytest.fixture(scope="module")
def narrow() -> Iterator[Overload]:
    """A service with few slots, on an upstream without a limit, which holds streams until they are released."""
    with overloaded(Behaviour(reply_s=REPLY_S, spread=0.3, holds_after=0), CEILING) as running:
        yield running


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    """Prints figures whether the test fails or not."""

    def write(shown: object) -> None:
        with capsys.disabled():
            print(f"\n{shown}", end="")  # noqa: T201

    return write


def of_status(replies: Iterable[TimedReply], status: int) -> list[TimedReply]:
    return [reply for reply in replies if reply.status == status]


async def latency_alone(pool: ConnectionPool, request: bytes) -> Latency:
    """With nothing else to do."""
    replies = [await pool.ask(request) for _ in range(5)]
    assert all(reply.is_done for reply in replies)
    return Latency.of(replies)


async def test_requests_above_the_ceiling_are_refused_while_the_slots_are_taken(narrow: Overload) -> None:
    """Of three times as many streams as slots two thirds get 429 before any slot is free; the others end whole."""
    request = chat_request(narrow.deployment.key, stream=True)
    pool = ConnectionPool(narrow.process.port)
    replies = [asyncio.create_task(pool.ask(request)) for _ in range(3 * CEILING)]
    while sum(reply.done() for reply in replies) < 2 * CEILING:
        await asyncio.wait([reply for reply in replies if not reply.done()], return_when=asyncio.FIRST_COMPLETED)
    await asyncio.to_thread(wait_until, lambda: narrow.upstream.counts().holding == CEILING, "full slots")
    assert {reply.result().status for reply in replies if reply.done()} == {429}
    narrow.upstream.release()
    ended = await asyncio.gather(*replies)
    pool.close()
    assert sum(reply.is_done for reply in ended) == CEILING
    assert all(int(reply.headers["retry-after-ms"]) > 0 for reply in of_status(ended, 429))


@pytest.mark.slow(reason="an overload of many seconds")
async def test_admitted_requests_keep_their_pace(narrow: Overload, show: Show) -> None:
    """Under three times the load that fits, admitted requests are about as fast as alone, and refusals are faster."""
    request = chat_request(narrow.deployment.key)
    before = narrow.deployment.ledger.charges
    pool = ConnectionPool(narrow.process.port)
    alone = await latency_alone(pool, request)
    async with pinged(narrow.upstream.port, "/counts") as pings:
        replies = await pool.send_repeatedly(request, 3 * CEILING, lambda served: served >= SERVED, refused_s=REPLY_S)
    pool.close()
    lag = Latency.of(pings)
    served, refused = Latency.of(of_status(replies, 200)), Latency.of(of_status(replies, 429))
    show(f"3 x the ceiling: alone {alone}\n  served {served}\n  refused {refused}\n  lag {lag}")
    assert {reply.status for reply in replies} == {200, 429}
    assert all(reply.is_done for reply in of_status(replies, 200))
    assert all(int(reply.headers["retry-after-ms"]) > 0 for reply in of_status(replies, 429))
    assert served.p50_ms < 2 * alone.p50_ms + HOPS * lag.p50_ms
    assert refused.p50_ms < served.p50_ms
    assert narrow.upstream.counts().most_in_flight <= CEILING
    wait_until(lambda: narrow.process.metric("cadenza_slots_taken") == 0, "every slot being free")
    assert narrow.deployment.ledger.charges - before == served.count + alone.count
    narrow.deployment.ledger.check()


@pytest.mark.slow(reason="an overload of many seconds")
async def test_modest_key_is_served_beside_a_greedy_one(narrow: Overload, show: Show) -> None:
    """At ten times the load that fits, keys that use less than their share are served at the first try."""
    greedy = chat_request(narrow.deployment.key)
    keys = [narrow.deployment.create_key() for _ in range(2)]

    async def try_often(pool: ConnectionPool, key: str) -> list[TimedReply]:
        pauses, replies = random.Random(3), list[TimedReply]()
        while len(replies) < TRIES:
            replies.append(await pool.ask(chat_request(key)))
            if replies[-1].status != 200:
                await asyncio.sleep(REPLY_S * pauses.uniform(0.5, 1.5))
        return replies

    pool, enough = ConnectionPool(narrow.process.port), asyncio.Event()
    crowding = asyncio.create_task(pool.send_repeatedly(greedy, 10 * CEILING, lambda _: enough.is_set(), REPLY_S))
    await asyncio.to_thread(
        wait_until, lambda: narrow.process.metric("cadenza_slots_taken") == CEILING, "the greedy key taking every slot"
    )
    few = await asyncio.gather(*(try_often(pool, key) for key in keys))
    enough.set()
    many = await crowding
    pool.close()
    tries = [reply for client in few for reply in client]
    few_served, many_served = of_status(tries, 200), of_status(many, 200)
    refusals = [
        [len(list(run)) for is_ok, run in groupby(client, lambda reply: reply.is_done) if not is_ok] for client in few
    ]
    show(
        f"2 modest keys, 1 client each: {len(few_served)} of {len(tries)} tries; {Latency.of(few_served)}; "
        f"refusals in a row {refusals}\n"
        f"  greedy key, {10 * CEILING} clients: {len(many_served)} of {len(many)} tries; {Latency.of(many_served)}; "
        f"refused {Latency.of(of_status(many, 429))}"
    )
    assert {reply.status for reply in (*tries, *many)} <= {200, 429}
    assert len(few_served) / len(tries) >= 0.75  # all but those that waited while the service got no core for a second
    assert len(few_served) / len(tries) > 2 * len(many_served) / len(many)
    assert len(many_served) > len(few_served)
    narrow.deployment.ledger.check()
