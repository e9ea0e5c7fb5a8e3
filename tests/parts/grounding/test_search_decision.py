"""The words of a message decide whether it needs the web."""

import json
from collections.abc import Iterator

import pytest

from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient
from tests.scripted_searxng import ScriptedSearxng, running_searxng
from tests.service import Service
from tests.service_config import RouteSpec, ServiceSpec

SETTLED = "Explain how photosynthesis works."
RECENT = "What is the weather in Bergen today?"
RESULTS = [{"url": "https://a.example/1", "title": "One", "content": "The first snippet."}]
ANSWER = (200, "application/json", json.dumps({"query": "q", "results": RESULTS}).encode())


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedSearxng]:
    with running_searxng() as engine:
        engine.answer = ANSWER
        yield engine


@pytest.fixture(scope="module")
def searching(engine: ScriptedSearxng, shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    routes, toml = {"forte": [RouteSpec("loopback", "forte")]}, f"{engine.toml}timeout_s = 60\n"
    with Service(ServiceSpec({"loopback": shared_upstream.base_url}, routes, toml)) as service:
        yield service


@pytest.fixture
def api(searching: Service) -> RawClient:
    return RawClient(searching.port, searching.key)


def chat(api: RawClient, class_id: str, text: str) -> str:
    """What the header of the reply says."""
    reply = api.chat(model=class_id, messages=[{"role": "user", "content": text}])
    assert reply.status == 200
    return reply.headers.get("x-cadenza-grounding", "")


def test_rules_decide(api: RawClient, upstream: LoopbackUpstream, engine: ScriptedSearxng) -> None:
    """Without a model call: the upstream sees the request alone, and a settled question is not searched."""
    engine.queries.clear()
    assert chat(api, "forte", SETTLED) == ""
    assert chat(api, "forte", RECENT) == "search=1"
    assert len(upstream.requests) == 2
    assert len(engine.queries) <= 1  # none if an earlier search is still kept


@pytest.mark.parametrize("stream", [False, True])
def test_a_page_that_could_not_be_read_is_not_cited(
    api: RawClient, searching: Service, upstream: LoopbackUpstream, stream: bool
) -> None:
    """The model is told so. No header, annotation or metric says that something was added."""
    text = "Summarise http://10.1.2.3/a please"
    reply = api.chat(messages=[{"role": "user", "content": text}], stream=stream)
    assert (reply.status, reply.headers.get("x-cadenza-grounding")) == (200, None)
    assert b"annotations" not in reply.body
    content = upstream.requests[-1].json["messages"][-1]["content"]
    assert content.startswith("The page http://10.1.2.3/a could not be read")
    assert content.endswith(text)
    counted = searching.process.get("/metrics")[1]
    assert 'cadenza_grounding_total{part="search",result="nothing"}' in counted
