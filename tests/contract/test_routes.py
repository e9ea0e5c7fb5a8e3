"""Routes: the next one serves where the first cannot, and a client hears only of the last resort."""

import json
from collections.abc import Iterator

import pytest

from tests.contract.wire import Wire
from tests.loopback import Close, Good, Json, LoopbackUpstream, Pause, Raw, Reply, Reset, Sse, Status, chunk, said
from tests.schemas import check_broken_stream, check_stream
from tests.service import RouteSpec, Service, ServiceSpec, refusing_address

ROLE = chunk({"role": "assistant", "content": ""})
SILENCE_S = 0.6
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
    """forte: first, with short patience, then backup. mezzo: refused, then backup. fortissimo: refused only."""
    with refusing_address() as refused:
        spec = ServiceSpec(
            providers={"first": shared_upstream.base_url, "backup": backup.base_url, "refused": refused},
            routes={
                "forte": [RouteSpec("first", "one", 0, SILENCE_S), RouteSpec("backup", "two", 1)],
                "mezzo": [RouteSpec("refused", "none"), RouteSpec("backup", "two", 1)],
                "fortissimo": [RouteSpec("refused", "none")],
            },
        )
        with Service(spec) as service:
            yield service


@pytest.fixture
def wire(routed: Service, backup: LoopbackUpstream) -> Wire:
    backup.reset()
    backup.always(Good("from the backup"))
    routed.reload()
    return Wire(routed.port, routed.key)


def text_of(wire: Wire, model: str, *, stream: bool) -> str:
    reply = wire.chat(model=model, stream=stream)
    assert reply.status == 200, reply.body
    return check_stream(reply.body).text if stream else str(reply.json["choices"][0]["message"]["content"])


@pytest.mark.parametrize("stream", [False, True])
def test_first_route_serves_while_it_can(
    wire: Wire, upstream: LoopbackUpstream, backup: LoopbackUpstream, stream: bool
) -> None:
    """A sound first route is asked for its own model, and the next is left alone."""
    upstream.always(Good("from the first"))
    assert text_of(wire, "forte", stream=stream) == "from the first"
    assert [request.json["model"] for request in upstream.requests] == ["one"]
    assert backup.requests == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_next_route_serves_after_a_fault(
    wire: Wire, upstream: LoopbackUpstream, backup: LoopbackUpstream, fault: str, stream: bool
) -> None:
    """A fault of the first route before any content is invisible to the client."""
    upstream.always(FAULTS[fault])
    assert text_of(wire, "forte", stream=stream) == "from the backup"
    assert [request.json["model"] for request in backup.requests] == ["two"]


@pytest.mark.parametrize("stream", [False, True])
def test_next_route_serves_where_the_first_refuses(wire: Wire, stream: bool) -> None:
    """A first route where nobody listens is passed over."""
    assert text_of(wire, "mezzo", stream=stream) == "from the backup"


@pytest.mark.parametrize("stream", [False, True])
def test_next_route_serves_where_the_first_is_silent(wire: Wire, upstream: LoopbackUpstream, stream: bool) -> None:
    """A first route that accepts and says nothing is given up within its time."""
    upstream.script(Raw([Pause()]))
    assert text_of(wire, "forte", stream=stream) == "from the backup"


def test_silent_route_is_hung_up_on(wire: Wire, upstream: LoopbackUpstream) -> None:
    """A route that is given up does not go on working: its connection is closed."""
    upstream.script(Raw([Pause()]))
    wire.chat(model="forte")
    upstream.wait_for_disconnect()


@pytest.mark.parametrize("stream", [False, True])
def test_all_routes_failing_is_502(
    wire: Wire, upstream: LoopbackUpstream, backup: LoopbackUpstream, stream: bool
) -> None:
    """Where no route can serve, the client gets one 502 that names none of them."""
    upstream.always(Status(500, b"first-secret"))
    backup.always(Status(503, b"backup-secret"))
    reply = wire.chat(model="forte", stream=stream)
    message = reply.error(502, "api_error")
    assert not [word for word in ("first", "backup", "secret", "127.0.0.1", "one", "two") if word in message.split()]
    assert "secret" not in message


@pytest.mark.parametrize("stream", [False, True])
def test_only_route_refusing_is_502(wire: Wire, stream: bool) -> None:
    """A class whose only upstream is down is a 502."""
    wire.chat(model="fortissimo", stream=stream).error(502, "api_error")


def test_all_routes_busy_is_429(wire: Wire, upstream: LoopbackUpstream, backup: LoopbackUpstream) -> None:
    """Only where every route says 429 is the service saturated."""
    upstream.always(Status(429, headers={"retry-after": "7"}))
    backup.always(Status(429, headers={"retry-after": "3"}))
    reply = wire.chat(model="forte")
    reply.error(429, "rate_limit_error")
    assert 1 <= int(reply.headers["retry-after"]) <= 7


def test_busy_and_broken_is_502(wire: Wire, upstream: LoopbackUpstream, backup: LoopbackUpstream) -> None:
    """One busy route among broken ones is a failure, not saturation."""
    upstream.always(Status(429))
    backup.always(Status(500))
    wire.chat(model="forte").error(502, "api_error")


@pytest.mark.parametrize("status", [400, 413, 422])
def test_fault_of_the_request_is_not_tried_elsewhere(
    wire: Wire, upstream: LoopbackUpstream, backup: LoopbackUpstream, status: int
) -> None:
    """A route that finds fault with the request answers for all of them."""
    upstream.always(Status(status, json.dumps({"error": {"message": "first-secret"}}).encode()))
    assert "secret" not in wire.chat(model="forte").error(400)
    assert backup.requests == []


def test_no_other_route_after_the_first_word(wire: Wire, upstream: LoopbackUpstream, backup: LoopbackUpstream) -> None:
    """Once a word is out, a failing route ends the stream; nobody starts over."""
    upstream.always(Sse([ROLE, said("half a word"), Reset()]))
    assert check_broken_stream(wire.chat(model="forte", stream=True).body).text == "half a word"
    assert backup.requests == []


def test_silence_mid_stream_ends_it(wire: Wire, upstream: LoopbackUpstream) -> None:
    """An upstream that falls silent after its first word is given up within its idle time."""
    upstream.script(Sse([ROLE, said("half a word"), Pause()]))
    assert check_broken_stream(wire.chat(model="forte", stream=True).body).text == "half a word"
    upstream.wait_for_disconnect()
