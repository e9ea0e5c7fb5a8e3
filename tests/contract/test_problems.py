"""What is wrong is said in the same words by top, doctor, /readyz and the operator's overview, and not by one alone."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cadenza.core.faults import FaultKind
from tests.loopback import LoopbackUpstream, Pause, Sse, Status
from tests.loopback.chunks import ROLE, said
from tests.raw_client import RawClient
from tests.service import EMAIL, Service, wait_until
from tests.service_config import RouteSpec, ServiceSpec
from tests.valkey import running_valkey
from tests.visitor import Visitor

pytestmark = pytest.mark.parts(reason="the operator's pages show the problems")

FEW = 8  # with fewer requests in flight, a 429 does not lower the limit of a route
SLOTS = FEW + 4
WELL = "All is well."
STRANGER = {"x-forwarded-for": "192.0.2.1"}  # a proxy leaves this mark


@contextlib.contextmanager
def running_service(upstream: LoopbackUpstream, more_toml: str = "") -> Iterator[Service]:
    spec = ServiceSpec(
        {"acme": upstream.base_url}, {"forte": [RouteSpec("acme", "large")]}, more_toml, {"concurrency": SLOTS}
    )
    with Service(spec) as service:
        with service.config.open("a") as config:
            config.write(f"\n[server]\nport = {service.port}\n")  # where top and doctor find it
        yield service


def top(service: Service) -> str:
    return " ".join(service.cli("top", "--once", "--interval", "0.5").stdout.split())


def doctor(service: Service) -> str:
    return "\n".join(f"{one['found']} {one['todo']}" for one in json.loads(service.cli("doctor", "--json").stdout))


def overview(service: Service) -> str:
    """The words of the operator's page."""
    assert service.cli("account", "operator", EMAIL).returncode == 0
    operator = Visitor(service.port)
    operator.sign_in()
    return operator.get("/operator").words


def test_a_dead_valkey_is_no_good_health(upstream: LoopbackUpstream) -> None:
    """While the alert CadenzaLimitsNotShared fires, top, doctor and the overview say so too; chats are served."""
    with running_valkey() as valkey, running_service(upstream, f'[shared_state]\nurl = "{valkey.url}"\n') as service:
        assert "Valkey" not in top(service)
        valkey.kill()
        api = RawClient(service.port, service.key)
        wait_until(lambda: "cadenza_shared_state_up 0.0" in api.get("/metrics").body.decode(), "the loss of Valkey")
        for words in (top(service), doctor(service), overview(service)):
            assert "Valkey does not answer" in words
            assert "each process keeps to its share of rates and slots" in words
            assert WELL not in words
        assert api.get("/readyz").status == 200
        assert api.chat().status == 200


def test_a_model_that_the_provider_does_not_know(upstream: LoopbackUpstream) -> None:
    """After 404 each place says to check the address and the model, and none sends the operator to a status page."""
    upstream.always(Status(404))
    with running_service(upstream) as service:
        api = RawClient(service.port, service.key)
        assert [api.chat().status for _ in range(3)] == [502] * 3
        for words in (top(service), doctor(service), overview(service)):
            assert FaultKind.NOT_FOUND.advice in words
            assert "status page" not in words


def test_a_service_with_another_store(upstream: LoopbackUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Doctor and top say so, also if the own service runs elsewhere, and the other one shows its metrics to nobody."""
    monkeypatch.setenv("CADENZA_TEST_METRICS", "a-token-for-prometheus-only")
    token = '[server]\nmetrics_token_env = "CADENZA_TEST_METRICS"\n'
    closed = ServiceSpec({"acme": upstream.base_url}, {"forte": [RouteSpec("acme", "large")]}, token)
    with running_service(upstream) as service, Service(closed) as other:
        own, port = f"port = {service.port}\n", other.port
        assert f"running at http://127.0.0.1:{service.port}" in doctor(service)
        config = service.config.read_text()
        service.config.write_text(config.replace(own, f"port = {port}\n"))
        assert f"what answers at http://127.0.0.1:{port} has another store" in doctor(service)
        done = service.cli("top", "--once", "--interval", "0.5")
        assert (done.returncode, "has another store than this config" in done.stderr) == (1, True)
        service.config.write_text(config)


def test_a_route_at_its_own_limit(upstream: LoopbackUpstream) -> None:
    """When a route's limit refuses, each place says to ask its provider: more slots would not help."""
    pauses = [Pause() for _ in range(SLOTS - 1)]
    for pause in pauses:
        upstream.script(Sse([ROLE, said("a"), pause, said("b")]))
    upstream.script(Status(429))
    with running_service(upstream) as service, ThreadPoolExecutor(SLOTS) as threads:
        api = RawClient(service.port, service.key)
        held = [threads.submit(api.chat, stream=True) for _ in pauses]
        try:
            for pause in pauses:
                pause.wait_until_reached()
            assert [api.chat().status for _ in range(3)] == [429] * 3
            assert 'cadenza_refused_total{reason="routes"} 2.0' in api.get("/metrics").body.decode()
            for words in (top(service), doctor(service), overview(service)):
                assert "acme/large" in words
                assert "Ask the provider for a higher limit, or add a route." in words
                assert "Raise concurrency" not in words
        finally:
            for pause in pauses:
                pause.release()
            for one in held:
                one.result()


def test_readyz_says_why(upstream: LoopbackUpstream) -> None:
    """An operator reads what SQLite says and what to do about it; a stranger only that the store takes no writes."""
    with running_service(upstream) as service:
        api = RawClient(service.port, service.key)
        with contextlib.closing(sqlite3.connect(service.store, isolation_level=None)) as store:
            store.execute("BEGIN IMMEDIATE")
            wait_until(lambda: "database is locked" in api.get("/readyz").body.decode(), "the reason", 30.0)
            assert b"Another process holds a lock on it" in api.get("/readyz").body
            assert b"disk" not in api.get("/readyz").body
            told = api.get("/readyz", STRANGER)
            assert (told.status, told.body) == (503, b"The store takes no writes: chats get 429.\n")
            assert "database is locked" in top(service)
            store.execute("ROLLBACK")
        wait_until(lambda: api.get("/readyz").body == b"ready\n", "the store to take writes")


@pytest.mark.parametrize("query", ["", "?verbose"])
def test_readyz_names_nothing_to_strangers(upstream: LoopbackUpstream, query: str) -> None:
    """Provider, model, path and number are for operators; a stranger learns that no route is usable."""
    upstream.always(Status(401))
    with running_service(upstream) as service:
        api = RawClient(service.port, service.key)
        assert api.chat().status == 502
        told, known = api.get(f"/readyz{query}", STRANGER), api.get(f"/readyz{query}").body.decode()
        assert (told.status, told.body) == (503, b"No route is usable: every chat fails.\n")
        assert "acme/large" in known
        assert FaultKind.UNAUTHORIZED.advice in known
