"""Routes: the next one serves if the first cannot, and a client only hears of the last."""

import json
import time
from collections.abc import Iterator

import pytest

from tests.loopback import ROLE, Close, Good, Json, LoopbackUpstream, Pause, Raw, Reply, Reset, Sse, Status, said
from tests.raw_client import RawClient
from tests.schemas import check_broken_stream, check_stream
from tests.service import Service, refusing_address
from tests.service_config import RouteSpec, ServiceSpec

SILENCE_S = 1.5
FAULTS: dict[str, Reply] = {
    "500": Status(500),
    "503": Status(503),
    "429": Status(429, headers={"retry-after": "30"}),
    "401": Status(401),
    "404": Status(404),
    "error in a 200": Json({"error": {"message": "boom"}}),
    "error in a stream": Sse([ROLE, {"error": {"message": "boom"}}]),
    "empty": Status(200),
    "closed": Raw([Close()]),
    "reset": Raw([Reset()]),
}


@pytest.fixture(scope="module")
def backup() -> Iterator[LoopbackUpstream]:
    with LoopbackUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def routed(shared_upstream: LoopbackUpstream, backup: LoopbackUpstream) -> Iterator[Service]:
    """forte: first, then backup. mezzo: refused, then backup. fortissimo: first, with short patience, then backup."""
    with refusing_address() as refused:
        spec = ServiceSpec(
            providers={"first": shared_upstream.base_url, "backup": backup.base_url, "refused": refused},
            routes={
                "forte": [RouteSpec("first", "one"), RouteSpec("backup", "two", 1)],
                "mezzo": [RouteSpec("refused", "none"), RouteSpec("backup", "two", 1)],
                "fortissimo": [RouteSpec("first", "one", 0, SILENCE_S), RouteSpec("backup", "two", 1)],
            },
        )
        with Service(spec) as service:
            yield service


@pytest.fixture
def api(routed: Service, backup: LoopbackUpstream) -> RawClient:
    backup.reset()
    backup.always(Good("from the backup"))
    routed.reload()
    return RawClient(routed.port, routed.key)


def text_of(api: RawClient, model: str, *, stream: bool) -> str:
    reply = api.chat(model=model, stream=stream)
    assert reply.status == 200, reply.body
    return check_stream(reply.body).text if stream else str(reply.json["choices"][0]["message"]["content"])


@pytest.mark.parametrize("stream", [False, True])
def test_first_route_serves_while_it_can(
    api: RawClient, upstream: LoopbackUpstream, backup: LoopbackUpstream, stream: bool
) -> None:
    """A healthy first route is asked for its own model, and the next is not asked."""
    upstream.always(Good("from the first"))
    assert text_of(api, "forte", stream=stream) == "from the first"
    assert [request.json["model"] for request in upstream.requests] == ["one"]
    assert backup.requests == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_next_route_serves_after_a_fault(
    api: RawClient, upstream: LoopbackUpstream, backup: LoopbackUpstream, fault: str, stream: bool
) -> None:
    """A fault of the first route before any content is invisible to the client."""
    upstream.always(FAULTS[fault])
    assert text_of(api, "forte", stream=stream) == "from the backup"
    assert [request.json["model"] for request in backup.requests] == ["two"]


@pytest.mark.parametrize("stream", [False, True])
def test_next_route_serves_if_the_first_refuses(api: RawClient, stream: bool) -> None:
    """A first route that refuses connections is skipped."""
    assert text_of(api, "mezzo", stream=stream) == "from the backup"


@pytest.mark.parametrize("stream", [False, True])
def test_next_route_serves_if_the_first_is_silent(api: RawClient, upstream: LoopbackUpstream, stream: bool) -> None:
    """A first route that accepts and stays silent is given up after its timeout, whatever the account can pay for."""
    upstream.script(Raw([Pause()]))
    began_s = time.monotonic()
    assert text_of(api, "fortissimo", stream=stream) == "from the backup"
    assert time.monotonic() - began_s < 15 * SILENCE_S  # the account can pay for 37 times 1,024 tokens


def test_silent_route_is_disconnected(api: RawClient, upstream: LoopbackUpstream) -> None:
    """The connection to a route that was given up is closed."""
    upstream.script(Raw([Pause()]))
    api.chat(model="fortissimo")
    upstream.wait_for_disconnect()


@pytest.mark.parametrize("stream", [False, True])
def test_all_routes_failing_is_502(
    api: RawClient, upstream: LoopbackUpstream, backup: LoopbackUpstream, stream: bool
) -> None:
    """If no route can serve, the client gets one 502 that names none of them."""
    upstream.always(Status(500, b"first-secret"))
    backup.always(Status(503, b"backup-secret"))
    reply = api.chat(model="forte", stream=stream)
    message = reply.error(502, "api_error")
    assert not [word for word in ("first", "backup", "secret", "127.0.0.1", "one", "two") if word in message.split()]
    assert "secret" not in message


def test_all_routes_busy_is_429(api: RawClient, upstream: LoopbackUpstream, backup: LoopbackUpstream) -> None:
    """If every route answers 429, the client gets a 429."""
    upstream.always(Status(429, headers={"retry-after": "7"}))
    backup.always(Status(429, headers={"retry-after": "3"}))
    reply = api.chat(model="forte")
    reply.error(429, "rate_limit_error")
    assert 1 <= int(reply.headers["retry-after"]) <= 7


def test_busy_and_broken_is_502(api: RawClient, upstream: LoopbackUpstream, backup: LoopbackUpstream) -> None:
    """One busy route among failing ones is a 502, not a 429."""
    upstream.always(Status(429))
    backup.always(Status(500))
    api.chat(model="forte").error(502, "api_error")


@pytest.mark.parametrize("status", [400, 413, 422])
def test_refused_request_is_not_tried_elsewhere(
    api: RawClient, upstream: LoopbackUpstream, backup: LoopbackUpstream, status: int
) -> None:
    """A request that one route refuses as invalid is not sent to another."""
    upstream.always(Status(status, json.dumps({"error": {"message": "first-secret"}}).encode()))
    assert "secret" not in api.chat(model="forte").error(400)
    assert backup.requests == []


def test_no_other_route_after_the_first_word(
    api: RawClient, upstream: LoopbackUpstream, backup: LoopbackUpstream
) -> None:
    """After the first word a failing route ends the stream; no other route starts over."""
    upstream.always(Sse([ROLE, said("half a word"), Reset()]))
    assert check_broken_stream(api.chat(model="forte", stream=True).body).text == "half a word"
    assert backup.requests == []
