"""A route that fails is left alone for a while and comes back by itself; one that names a time is given it."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cadenza.routing.dispatch import RETRIES_PER_REQUEST
from cadenza.routing.health import FAULTS_TO_REST, REST_S_MIN
from tests.contract.purse import wait_until
from tests.contract.wire import Reply, Wire
from tests.loopback import Good, LoopbackUpstream, Pause, Raw, Reset, Sse, Status, chunk, said
from tests.schemas import check_stream
from tests.service import RouteSpec, Service, ServiceSpec

SLOTS = 20
ROLE = chunk({"role": "assistant", "content": ""})
PROMPT_S = 3.0  # a refusal takes milliseconds; on a machine that is busy with other tests, no more than this


@pytest.fixture(scope="module")
def backup() -> Iterator[LoopbackUpstream]:
    with LoopbackUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def rested(shared_upstream: LoopbackUpstream, backup: LoopbackUpstream) -> Iterator[Service]:
    """forte: first, then backup. mezzo: first alone."""
    spec = ServiceSpec(
        providers={"first": shared_upstream.base_url, "backup": backup.base_url},
        routes={
            "forte": [RouteSpec("first", "one"), RouteSpec("backup", "two", order=1)],
            "mezzo": [RouteSpec("first", "sole")],
        },
        limits={"concurrency": SLOTS},
    )
    with Service(spec) as service:
        yield service


@pytest.fixture
def wire(rested: Service, backup: LoopbackUpstream) -> Wire:
    backup.reset()
    backup.always(Good("from the backup"))
    rested.reload()
    return Wire(rested.port, rested.key)


def text_of(reply: Reply) -> str:
    assert reply.status == 200, reply.body
    return str(reply.json["choices"][0]["message"]["content"])


def is_resting(wire: Wire, provider: str, model: str) -> bool:
    line = rf'^cadenza_route_resting{{model="{model}",provider="{provider}"}} ([01])\.0$'
    found = re.search(line, wire.get("/metrics").body.decode(), re.MULTILINE)
    assert found
    return found[1] == "1"


def rest(wire: Wire, upstream: LoopbackUpstream, status: int, retry_after: str) -> Reply:
    """mezzo's only route is told to rest by one answer."""
    upstream.script(Status(status, headers={"retry-after": retry_after}))
    return wire.chat(model="mezzo")


@pytest.mark.parametrize("failure", [Status(500), Raw([Reset()])], ids=["500", "reset"])
def test_a_failing_route_is_left_alone_and_comes_back(
    wire: Wire, upstream: LoopbackUpstream, failure: Status | Raw
) -> None:
    """After so many faults it is asked no more than its trials, nobody notices, and once it is well it serves again."""
    upstream.always(failure)
    started_s = time.monotonic()
    assert {text_of(wire.chat(model="forte")) for _ in range(40)} == {"from the backup"}
    trials_max = 1 + (time.monotonic() - started_s) / REST_S_MIN  # and a kept connection that was dead is made anew
    assert FAULTS_TO_REST <= len(upstream.requests) <= FAULTS_TO_REST + trials_max
    assert is_resting(wire, "first", "one")
    upstream.always(Good("from the first"))
    wait_until(lambda: text_of(wire.chat(model="forte")) == "from the first", "the first route's coming back")
    assert not is_resting(wire, "first", "one")


def test_a_route_that_breaks_off_is_left_alone_too(wire: Wire, upstream: LoopbackUpstream) -> None:
    """Streams that begin well and break off, one after the other, lead to another route for those that follow."""
    upstream.always(Sse([ROLE, said("half"), Reset()]))
    for _ in range(FAULTS_TO_REST):
        assert b'"error"' in wire.chat(model="forte", stream=True).body
    assert b"from" in wire.chat(model="forte", stream=True).body
    assert len(upstream.requests) == FAULTS_TO_REST


def test_a_retry_after_is_kept(wire: Wire, upstream: LoopbackUpstream) -> None:
    """A route that said 429 and when to come back is not asked before, and then it is."""
    upstream.script(Status(429, headers={"retry-after": "1"}))
    upstream.always(Good("from the first"))
    started_s = time.monotonic()
    assert text_of(wire.chat(model="forte")) == "from the backup"
    wait_until(lambda: text_of(wire.chat(model="forte")) == "from the first", "the first route's being asked again")
    assert time.monotonic() - started_s >= 1.0
    assert len(upstream.requests) == 2


def test_a_429_without_a_time_is_not_a_rest(wire: Wire, upstream: LoopbackUpstream) -> None:
    """A route that says 429 and no time is asked again by the very next request."""
    upstream.script(*[Status(429)] * 8)
    upstream.always(Good("from the first"))
    texts = [text_of(wire.chat(model="forte")) for _ in range(9)]
    assert texts == ["from the backup"] * 8 + ["from the first"]


def test_refusals_do_not_make_a_route_rest(wire: Wire, upstream: LoopbackUpstream) -> None:
    """Bad requests of one client do not take a route from the others."""
    upstream.script(*[Status(400)] * (FAULTS_TO_REST * 2))
    upstream.always(Good("from the first"))
    for _ in range(FAULTS_TO_REST * 2):
        wire.chat(model="forte").error(400)
    assert text_of(wire.chat(model="forte")) == "from the first"


def test_a_sole_route_that_rests_is_the_last_resort(wire: Wire, upstream: LoopbackUpstream) -> None:
    """A client is told the time that the upstream named, and one who comes before is served if it can be."""
    reply = rest(wire, upstream, 429, "30")
    reply.error(429, "rate_limit_error")
    assert reply.headers["retry-after"] == "30"
    assert wire.chat(model="mezzo").status == 200
    assert not is_resting(wire, "first", "sole")


def test_a_crowd_at_a_sole_route_that_rests(wire: Wire, upstream: LoopbackUpstream) -> None:
    """One request tries it; the others are told at once when to come back, and the upstream hears nothing of them."""
    rest(wire, upstream, 429, "30")
    pause = Pause()
    upstream.script(Sse([pause, ROLE, said("late"), chunk(finish="stop")]))
    with ThreadPoolExecutor(SLOTS) as crowd:
        trial = crowd.submit(wire.chat, model="mezzo", stream=True)
        pause.wait_until_reached()
        started_s = time.monotonic()
        refused = list(crowd.map(lambda _: wire.chat(model="mezzo"), range(SLOTS - 5)))
        assert time.monotonic() - started_s < PROMPT_S
        for reply in refused:
            reply.error(429, "rate_limit_error")
            assert 20 <= int(reply.headers["retry-after"]) <= 30
            assert 20_000 <= int(reply.headers["retry-after-ms"]) <= 30_000
        pause.release()
        assert check_stream(trial.result().body).text == "late"
    assert len(upstream.requests) == 2


@pytest.mark.parametrize("status", [503, 529])
@pytest.mark.parametrize("retry_after", [{}, {"retry-after": "1"}], ids=["", "with a time"])
def test_an_overloaded_upstream_is_502(
    wire: Wire, upstream: LoopbackUpstream, status: int, retry_after: dict[str, str]
) -> None:
    """503 and 529 are failures, whatever time they name: the class did not answer."""
    upstream.script(Status(status, headers=retry_after))
    wire.chat(model="mezzo").error(502, "api_error")
    assert is_resting(wire, "first", "sole") == bool(retry_after)
    assert wire.chat(model="mezzo").status == 200


def test_a_failing_class_does_not_become_a_storm(
    wire: Wire, upstream: LoopbackUpstream, backup: LoopbackUpstream
) -> None:
    """Where every route fails, 200 requests make few more than 200 of the upstreams, all are answered, none waits."""
    upstream.always(Status(500))
    backup.always(Status(500))
    with ThreadPoolExecutor(SLOTS) as crowd:
        replies = list(crowd.map(lambda number: wire.chat(model="forte", stream=bool(number % 2)), range(200)))
    assert {reply.status for reply in replies} <= {502, 429}
    assert replies[0].status == 502
    asked = len(upstream.requests) + len(backup.requests)
    assert asked <= 200 + SLOTS + 200 * RETRIES_PER_REQUEST
    upstream.always(Good("from the first"))
    wait_until(lambda: wire.chat(model="forte").status == 200, "the class's coming back")
