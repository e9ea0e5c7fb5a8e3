"""Why a provider does not answer: log, metrics, top, doctor, explain and pages say it in the same words."""

import json
from collections.abc import Iterator

import pytest

from cadenza.core.faults import FaultKind
from cadenza.routing.health import FAILING_FAULTS
from tests.loopback import Good, LoopbackUpstream, Status
from tests.raw_client import RawClient
from tests.service import EMAIL, Service, wait_until
from tests.service_config import RouteSpec, ServiceSpec
from tests.visitor import Visitor

pytestmark = pytest.mark.parts(reason="the operator's pages name the faults")

NO_QUOTA = Status(429, b'{"error": {"message": "You exceeded your quota.", "code": "insufficient_quota"}}')
CLASSES = {"forte": FaultKind.DNS, "mezzo": FaultKind.QUOTA}
IN_STORE = "SELECT 1 FROM request_details WHERE request_id = ?"


@pytest.fixture
def service(upstream: LoopbackUpstream) -> Iterator[Service]:
    """One class whose provider has no address, and one whose provider was not paid."""
    spec = ServiceSpec(
        providers={"dns": "https://no-such-host.invalid/v1", "quota": upstream.base_url},
        routes={"forte": [RouteSpec("dns", "large")], "mezzo": [RouteSpec("quota", "large")]},
    )
    upstream.always(NO_QUOTA)
    with Service(spec) as running:
        with running.config.open("a") as config:
            config.write(f"\n[server]\nport = {running.port}\n")  # where doctor finds it
        yield running


def test_a_fault_has_the_same_words_everywhere(service: Service, upstream: LoopbackUpstream) -> None:
    """The client gets a 502 that names nobody; operators see kind, words and advice in each place."""
    api = RawClient(service.port, service.key)
    asked = dict[FaultKind, str]()
    for class_id, kind in CLASSES.items():
        for _ in range(FAILING_FAULTS):
            reply = api.chat(model=class_id)
            assert (reply.status, reply.json["error"]["type"]) == (502, "api_error")
            assert not any(word in reply.body for word in (b"quota", b"dns", b"invalid", b"large"))
        asked[kind] = reply.headers["x-request-id"]
    wait_until(lambda: all(service.ledger.query(IN_STORE, one) for one in asked.values()), "their details")
    metrics, log = api.get("/metrics").body.decode(), service.process.output
    doctor = [f"{check['found']} {check['todo']}" for check in json.loads(service.cli("doctor", "--json").stdout)]
    tried = {check["todo"]: check["found"] for check in json.loads(service.cli("doctor", "--try", "--json").stdout)}
    top = service.cli("top", "--once").stdout
    assert service.cli("account", "operator", EMAIL).returncode == 0
    operator = Visitor(service.port)
    operator.sign_in()
    page, load = operator.get("/operator").words, operator.api("GET", "/operator/load").json["models"]
    for kind, request_id in asked.items():
        words = f"{kind.words} ({kind.value}"
        assert (
            f'cadenza_upstream_faults_total{{kind="{kind.value}",provider="{kind.value}"}} {FAILING_FAULTS}.0'
            in metrics
        )
        assert f'"kind":"{kind.value}"' in log.replace(" ", "")
        assert f"{kind.value}/large failed: {words}" in service.cli("explain", request_id).stdout
        assert any(f"{kind.value}/large: {words}" in one and kind.advice in one for one in doctor)
        assert words in tried[kind.advice]
        assert f"{kind.value}/large" in top
        assert words in page
        assert kind.advice in page
        (model,) = [one for one in load if one["provider"] == kind.value]
        assert (model["last_fault"]["kind"], model["advice"]) == (kind.value, kind.advice)
    assert "open" in next(line for line in top.splitlines() if line.startswith("quota/large"))

    upstream.always(Good("The bill is paid."))
    assert api.chat(model="mezzo").status == 200
