"""Routes of one order share the load by their weights; others take over for a failing one."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.loopback import Good, LoopbackUpstream, Status
from tests.raw_client import RawClient
from tests.service import Service
from tests.service_config import RouteSpec, ServiceSpec


@pytest.fixture(scope="module")
def heavy() -> Iterator[LoopbackUpstream]:
    with LoopbackUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def light() -> Iterator[LoopbackUpstream]:
    with LoopbackUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def shared(heavy: LoopbackUpstream, light: LoopbackUpstream) -> Iterator[Service]:
    """forte: heavy and light share 3:1, and a spare that is never needed. mezzo: they share 1:1."""
    spec = ServiceSpec(
        providers={"heavy": heavy.base_url, "light": light.base_url},
        routes={
            "forte": [
                RouteSpec("light", "spare", order=1, weight=100),
                RouteSpec("heavy", "one", weight=3),
                RouteSpec("light", "two"),
            ],
            "mezzo": [RouteSpec("heavy", "one"), RouteSpec("light", "two")],
        },
    )
    with Service(spec) as service:
        yield service


@pytest.fixture
def api(shared: Service, heavy: LoopbackUpstream, light: LoopbackUpstream) -> RawClient:
    heavy.reset()
    light.reset()
    shared.reload()
    return RawClient(shared.port, shared.key)


def test_weights_share_the_load(api: RawClient, heavy: LoopbackUpstream, light: LoopbackUpstream) -> None:
    """Of 40 requests in turn 30 and 10 are served at 3:1, and every four in a row are three and one."""
    for number in range(10):
        assert [api.chat(model="forte", stream=bool(number % 2)).status for _ in range(4)] == [200] * 4
        assert (len(heavy.requests), len(light.requests)) == (3 * (number + 1), number + 1)
    assert {request.json["model"] for request in light.requests} == {"two"}


def test_weights_share_concurrent_requests(api: RawClient, heavy: LoopbackUpstream, light: LoopbackUpstream) -> None:
    """Concurrent requests are shared exactly too."""
    with ThreadPoolExecutor(20) as threads:
        assert set(threads.map(lambda _: api.chat(model="forte").status, range(80))) == {200}
    assert (len(heavy.requests), len(light.requests)) == (60, 20)


def test_classes_share_by_their_own_weights(api: RawClient, heavy: LoopbackUpstream, light: LoopbackUpstream) -> None:
    """The same routes in another class have the weights of that class."""
    for _ in range(10):
        assert api.chat(model="mezzo").status == 200
    assert (len(heavy.requests), len(light.requests)) == (5, 5)


def test_other_route_takes_over(api: RawClient, heavy: LoopbackUpstream, light: LoopbackUpstream) -> None:
    """While one route fails the other serves its requests too, and clients do not notice."""
    heavy.always(Status(500))
    light.always(Good("from the light"))
    replies = [api.chat(model="forte") for _ in range(20)]
    assert {reply.json["choices"][0]["message"]["content"] for reply in replies} == {"from the light"}
