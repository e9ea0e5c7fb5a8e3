"""A search engine that fails: the part is left out and counted, the reply comes, and nothing else is charged."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient
from tests.scripted_searxng import ScriptedSearxng, running_searxng
from tests.service import Service, wait_until
from tests.service_config import RouteSpec, ServiceSpec

FAILS = "the search engine fails"
QUESTION = [{"role": "user", "content": "Search the web: who won the race yesterday?"}]
FAULTS = {
    "nothing at all": None,
    "a server error": (500, "text/plain", b"sorry"),
    "a web page": (200, "text/html", b"<html>Sign in</html>"),
    "broken JSON": (200, "application/json", b'{"results": ['),
}

REASONS = re.compile(r'^cadenza_grounding_failures_total{part="search",reason="(\w+)"} (\S+)$', re.MULTILINE)


@pytest.fixture(scope="module")
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
