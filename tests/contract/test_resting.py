"""A failing route rests for a while and recovers by itself; a Retry-After, or an operator, sets how long."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cadenza.core.breaker import FAULTS_TO_OPEN, OPEN_S_MIN, TRIAL_S
from tests.account import run_command
from tests.loopback import ROLE, Good, LoopbackUpstream, Pause, Raw, Reset, Sse, Status, chunk, said
from tests.raw_client import RawClient, Reply, read_all, read_until
from tests.schemas import check_stream
from tests.service import Service, wait_until
from tests.service_config import RouteSpec, ServiceSpec

SLOTS = 20
REST_S = 60


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
def api(rested: Service, backup: LoopbackUpstream) -> RawClient:
    backup.reset()
    backup.always(Good("from the backup"))
    rested.reload()
    return RawClient(rested.port, rested.key)


def text_of(reply: Reply) -> str:
    assert reply.status == 200, reply.body
    return str(reply.json["choices"][0]["message"]["content"])


def is_open(api: RawClient, provider: str, model: str) -> bool:
    line = rf'^cadenza_route_state{{model="{model}",provider="{provider}",state="open"}} ([01])\.0$'
    found = re.search(line, api.get("/metrics").body.decode(), re.MULTILINE)
    assert found
    return found[1] == "1"


def trials_since(started_s: float) -> float:
    """How many trials there can have been since then, and one more for a kept connection that was closed."""
    return 1 + (time.monotonic() - started_s) / OPEN_S_MIN


def open_circuit(api: RawClient, upstream: LoopbackUpstream, status: int, retry_after: str) -> Reply:
    """Open the circuit of mezzo's only route, by one answer."""
    upstream.script(Status(status, headers={"retry-after": retry_after}))
    return api.chat(model="mezzo")


@pytest.mark.parametrize("failure", [Status(500), Raw([Reset()])], ids=["500", "reset"])
def test_failing_route_rests_and_recovers(api: RawClient, upstream: LoopbackUpstream, failure: Status | Raw) -> None:
    """After some faults a route is only tried now and then, unnoticed by clients, and serves again once it recovers."""
    upstream.always(failure)
    started_s = time.monotonic()
    assert {text_of(api.chat(model="forte")) for _ in range(40)} == {"from the backup"}
    assert FAULTS_TO_OPEN <= len(upstream.requests) <= FAULTS_TO_OPEN + trials_since(started_s)
    wait_until(lambda: api.chat(model="forte").status == 200 and is_open(api, "first", "one"), "the rest")
    upstream.always(Good("from the first"))
    wait_until(lambda: text_of(api.chat(model="forte")) == "from the first", "the recovery of the first route")
    assert not is_open(api, "first", "one")


def test_retry_after_is_kept(api: RawClient, upstream: LoopbackUpstream) -> None:
    """A route that answered 429 with a Retry-After is not asked before that time, and is asked after it."""
    upstream.script(Status(429, headers={"retry-after": "1"}))
    upstream.always(Good("from the first"))
    started_s = time.monotonic()
    assert text_of(api.chat(model="forte")) == "from the backup"
    wait_until(lambda: text_of(api.chat(model="forte")) == "from the first", "the first route being asked again")
    assert time.monotonic() - started_s >= 1.0
    assert len(upstream.requests) == 2


def test_only_route_is_tried_by_one_request_at_a_time(api: RawClient, upstream: LoopbackUpstream) -> None:
    """One request tries the resting route; the others get 429 before that trial ends, without reaching the upstream."""
    open_circuit(api, upstream, 429, str(REST_S))
    pause, started_s = Pause(), time.monotonic()
    upstream.always(Status(429, headers={"retry-after": str(REST_S)}))
    upstream.script(Sse([pause, ROLE, said("late"), chunk(finish="stop")]))
    with ThreadPoolExecutor(SLOTS) as threads:
        trial = threads.submit(api.chat, model="mezzo", stream=True)
        pause.wait_until_reached()
        refused = list(threads.map(lambda _: api.chat(model="mezzo"), range(SLOTS - 5)))
        further_trials_max = (time.monotonic() - started_s) / TRIAL_S
        assert not trial.done()
        for reply in refused:
            reply.error(429, "rate_limit_error")
            assert 1 <= int(reply.headers["retry-after"]) <= REST_S
            assert 1 <= int(reply.headers["retry-after-ms"]) <= 1000 * REST_S
        pause.release()
        assert check_stream(trial.result().body).text == "late"
    assert 2 <= len(upstream.requests) <= 2 + further_trials_max


@pytest.mark.parametrize("status", [503, 529])
@pytest.mark.parametrize("retry_after", [{}, {"retry-after": str(REST_S)}], ids=["", "with a time"])
def test_overloaded_upstream_is_502(
    api: RawClient, upstream: LoopbackUpstream, status: int, retry_after: dict[str, str]
) -> None:
    """503 and 529 are failures whatever their Retry-After: the client gets a 502."""
    upstream.script(Status(status, headers=retry_after))
    api.chat(model="mezzo").error(502, "api_error")
    assert is_open(api, "first", "sole") == bool(retry_after)
    assert api.chat(model="mezzo").status == 200


def test_a_rest_by_hand_holds_in_every_process(rested: Service, api: RawClient, upstream: LoopbackUpstream) -> None:
    """Also in one that starts later; a class whose routes all rest is down, and a rest ends early or alone."""
    pause, earlier = Pause(), list(rested.processes)
    upstream.always(Good("from the first"))
    open_circuit(api, upstream, 429, str(REST_S))
    upstream.script(Sse([ROLE, said("half"), pause, said(" done"), chunk(finish="stop")]))
    with api.open_chat(model="forte", stream=True) as running:
        read_until(running, b'"half"')
        run_command(rested, "route", "rest", "first/one", "10m")
        assert is_open(api, "first", "sole"), "circuits stay as they are"
        apis = [api, RawClient(rested.start().port, rested.key)]
        assert [text_of(one.chat(model="forte")) for one in apis] == ["from the backup"] * 2
        pause.release()
        assert b"[DONE]" in read_all(running)
    assert [text_of(one.chat(model="mezzo")) for one in apis] == ["from the first"] * 2
    run_command(rested, "route", "rest", "first/sole", "1h")
    for one in apis:
        one.chat(model="mezzo").error(502, "api_error")
    for route in ("first/one", "first/sole"):
        run_command(rested, "route", "resume", route)
    for class_id in ("forte", "mezzo"):
        assert [text_of(one.chat(model=class_id)) for one in apis] == ["from the first"] * 2
    run_command(rested, "route", "rest", "first/one", "1s")
    wait_until(lambda: text_of(api.chat(model="forte")) == "from the first", "the end of the rest")
    rested.stop()
    rested.processes[:] = earlier
