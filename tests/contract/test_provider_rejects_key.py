"""A provider that lists its models and rejects every chat: probes, doctor, metrics and pages say so."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest

from tests.loopback import Good, Json, LoopbackUpstream, Reply, Request, Status, Step
from tests.raw_client import RawClient
from tests.service import Service, wait_until
from tests.service_config import RouteSpec, ServiceSpec


class ListsModels(msgspec.Struct, frozen=True):
    """Answers with a list of its models, and to every chat with another reply."""

    chat: Reply

    def steps(self, request: Request) -> Iterable[Step]:
        if request.path.endswith("/models"):
            return Json({"object": "list", "data": [{"id": "large", "object": "model"}]}).steps(request)
        return self.chat.steps(request)


@pytest.fixture
def rejected(upstream: LoopbackUpstream) -> Iterator[Service]:
    spec = ServiceSpec(
        providers={"acme": upstream.base_url},
        routes={"mezzo": [RouteSpec("acme", "large")], "forte": [RouteSpec("acme", "large")]},
    )
    upstream.always(ListsModels(Status(401)))
    with Service(spec) as service:
        with service.config.open("a") as config:
            config.write(f"\n[server]\nport = {service.port}\n")  # where doctor finds it
        yield service


CLASSES = ("mezzo", "forte")


def failed_lines(service: Service) -> list[dict[str, Any]]:
    """The log lines of requests that ended with 502."""
    lines = [json.loads(line) for line in service.process.output.splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("status") == 502]


def test_a_rejected_key_is_seen_everywhere(rejected: Service, upstream: LoopbackUpstream) -> None:
    """After one chat the service is not ready, and every place names the fault; after one answer all is well again."""
    api = RawClient(rejected.port, rejected.key)
    assert api.get("/readyz").status == 200
    reply = api.chat()
    assert (reply.status, reply.json["error"]["type"]) == (502, "api_error")
    assert (api.get("/readyz").status, api.get("/readyz").body[:19]) == (503, b"No route is usable:")
    wait_until(lambda: len(failed_lines(rejected)) == 1, "the log line of the request")
    assert [(line["provider"], line["fault"]) for line in failed_lines(rejected)] == [("acme", "unauthorized")]
    metrics = api.get("/metrics").body.decode()
    assert 'cadenza_upstream_faults_total{kind="unauthorized",provider="acme"} 1.0' in metrics
    assert 'cadenza_route_failing{model="large",provider="acme"} 1.0' in metrics

    done = rejected.cli("doctor", "--json")
    faults = [check for check in json.loads(done.stdout) if check["state"] == "fault"]
    assert done.returncode == 1
    assert [check["found"] for check in faults] == [
        "No route is usable: every chat fails.",
        "A provider rejects its key. acme/large: it rejects the provider's key (unauthorized, status 401).",
        *(f"{one} -> acme: large: the provider lists its models, but rejects the key in chats" for one in CLASSES),
    ]
    assert faults[1]["todo"].startswith("Check the provider's key")

    upstream.always(ListsModels(Good("I am back.")))
    assert api.chat().status == 200
    assert api.get("/readyz").status == 200
    assert rejected.cli("doctor").returncode == 0


def test_doctor_asks_each_model_for_one_token(rejected: Service, upstream: LoopbackUpstream) -> None:
    """With --try a rejected chat is a fault although the models are listed; an answer is not. One request each."""
    done = rejected.cli("doctor", "--try", "--json")
    (tried,) = [check for check in json.loads(done.stdout) if check["check"] == "chat"]
    assert (done.returncode, tried["state"], tried["found"]) == (
        1,
        "fault",
        "it rejects the provider's key (unauthorized, status 401)",
    )
    chats = [one for one in upstream.requests if one.path.endswith("/chat/completions")]
    assert [one.json["max_tokens"] for one in chats] == [1]
    upstream.always(ListsModels(Good("1")))
    done = rejected.cli("doctor", "--try", "--json")
    assert [check["state"] for check in json.loads(done.stdout) if check["check"] == "chat"] == ["ok"]
