"""Routes: the next one serves if the first cannot, and a client only hears of the last."""

import time
from collections.abc import Iterator

import pytest

from tests.loopback import Close, Good, LoopbackUpstream, Pause, Raw, Reply, Reset
from tests.raw_client import RawClient
from tests.schemas import check_stream
from tests.service import Service, refusing_address
from tests.service_config import RouteSpec, ServiceSpec

SILENCE_S = 1.5
FAULTS: dict[str, Reply] = {"closed": Raw([Close()]), "reset": Raw([Reset()])}


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
