"""A search engine that fails is left out and counted; a kill around a search leaves nothing behind."""

import json
import re
from collections.abc import Iterator

import pytest

from cadenza.core.records import Cap
from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient
from tests.scripted_searxng import ANSWER, ScriptedSearxng, running_searxng
from tests.service import CREDIT_NANO, Deployment, Service, wait_until
from tests.service_config import RouteSpec, ServiceSpec

FAILS = "the search engine fails"
QUESTION = [{"role": "user", "content": "Search the web: who won the race yesterday?"}]
FAULTS = {
    "nothing at all": None,
    "a server error": (500, "text/plain", b"sorry"),
    "a web page": (200, "text/html", b"<html>Sign in</html>"),
    "broken JSON": (200, "application/json", b'{"results": ['),
}
BODY = {"messages": QUESTION}

REASONS = re.compile(r'^cadenza_grounding_failures_total{part="search",reason="(\w+)"} (\S+)$', re.MULTILINE)


@pytest.fixture
def engine() -> Iterator[ScriptedSearxng]:
    with running_searxng() as engine:
        yield engine


@pytest.fixture
def service(engine: ScriptedSearxng, shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    routes, search = {"forte": [RouteSpec("loopback")]}, f"{engine.toml}timeout_s = 1\n"
    with Service(ServiceSpec({"loopback": shared_upstream.base_url}, routes, search)) as service:
        yield service


def test_a_failing_engine_is_left_out(service: Service, engine: ScriptedSearxng, upstream: LoopbackUpstream) -> None:
    """Whatever the engine does, the reply comes without sources, and both client and model are told."""
    api = RawClient(service.port, service.key)
    for stream, answer in enumerate(FAULTS.values()):
        engine.answer = answer
        reply = api.chat(messages=QUESTION, stream=bool(stream % 2))
        assert (reply.status, reply.is_done) == (200, True)
        assert reply.headers["x-cadenza-grounding"] == "search=failed"
        content = upstream.requests[-1].json["messages"][-1]["content"]
        assert content.startswith("A search for my question failed.")
        assert content.endswith(QUESTION[0]["content"])
    failed, late = (
        service.process.metric(rf'cadenza_grounding_total{{part="search",result="{result}"}}')
        if f'result="{result}"' in service.process.get("/metrics")[1]
        else 0
        for result in ("failed", "late")
    )
    assert failed + late == len(FAULTS)
    counted = REASONS.findall(service.process.get("/metrics")[1])
    assert sum(float(count) for _, count in counted) == len(FAULTS)
    assert {reason for reason, _ in counted} <= {"broken", "failed", "not_json", "timeout", "resting", "late"}
    wait_until(lambda: FAILS in service.output, "the warning in the log")  # lines are written some time later
    warned = [json.loads(line) for line in service.output.splitlines() if "the search engine" in line]
    assert {line["engine"] for line in warned} == {"searxng"}
    assert {line["event"] for line in warned} == {FAILS}
    assert "race" not in service.output


@pytest.mark.slow(reason="restarts after kills")
@pytest.mark.parametrize("step", ["the search", "quoted"])
def test_a_kill_around_a_search_leaves_nothing_behind(
    engine: ScriptedSearxng, upstream: LoopbackUpstream, step: str
) -> None:
    """While the engine works, and between the charge of a search and the hold of its chat, under a spend cap."""
    engine.answer = ANSWER if step == "quoted" else None
    toml = f'{engine.toml}timeout_s = 60\nprice = "0.005"\n'
    spec = ServiceSpec({"loopback": upstream.base_url}, {"forte": [RouteSpec("loopback")]}, toml)
    with Deployment(spec, CREDIT_NANO) as deployment:
        email = deployment.create_account(CREDIT_NANO)
        secret = deployment.create_key(email, cap=Cap(CREDIT_NANO // 2))
        process = deployment.start("quoted" if step == "quoted" else "")
        api = RawClient(process.port, secret)
        with api.connect() as client:
            client.sendall(api.chat_bytes(json.dumps(BODY).encode(), "idempotency-key: one"))
            wait_until(lambda: bool(engine.queries), "the search")
            if step == "quoted":
                process.wait_until_killed()
            else:
                process.kill()
        engine.answer = ANSWER
        with_another = RawClient(deployment.start().port, secret)
        reply = with_another.post(BODY, {"idempotency-key": "one"})
        assert (reply.status, reply.headers["x-cadenza-grounding"]) == (200, "search=1")
        used = {one["model"]: one["requests"] for one in with_another.get("/v1/usage?group_by=model").json["data"]}
        assert used == {"search": 1, "forte": 1}
        assert deployment.cli("ledger", "check").returncode == 0
