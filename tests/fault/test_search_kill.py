"""A process that is killed around a web search: nothing stays held, and a retry pays for one search."""

import json
from collections.abc import Iterator

import pytest

from cadenza.core.records import Cap
from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient
from tests.scripted_searxng import ScriptedSearxng, running_searxng
from tests.service import CREDIT_NANO, Deployment, wait_until
from tests.service_config import RouteSpec, ServiceSpec

RESULTS = [{"url": "https://a.example/1", "title": "One", "content": "The first snippet."}]
ANSWER = (200, "application/json", json.dumps({"query": "q", "results": RESULTS}).encode())
BODY = {"messages": [{"role": "user", "content": "Search the web: what is the latest news about Bergen?"}]}
KEY = {"idempotency-key": "one"}
pytestmark = pytest.mark.slow(reason="restarts after kills")


@pytest.fixture
def engine() -> Iterator[ScriptedSearxng]:
    with running_searxng() as running:
        yield running


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
        reply = with_another.post(BODY, KEY)
        assert (reply.status, reply.headers["x-cadenza-grounding"]) == (200, "search=1")
        used = {one["model"]: one["requests"] for one in with_another.get("/v1/usage?group_by=model").json["data"]}
        assert used == {"search": 1, "forte": 1}
        assert deployment.cli("ledger", "check").returncode == 0
