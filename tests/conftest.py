"""The upstream and the service that tests share, and a factory for other services."""

import contextlib
import os
import zlib
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.loopback import LoopbackUpstream
from tests.service import Service
from tests.service_config import ServiceSpec, ordinary_spec

StartService = Callable[[ServiceSpec], Service]

# How long an example takes says nothing on a busy machine.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


def pytest_xdist_auto_num_workers() -> int:
    """Twice as many as there are cores, because many tests wait for another process."""
    return 2 * (os.cpu_count() or 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mix the files, so that those that wait and those that compute run side by side. A fleet takes longest."""

    def place(item: pytest.Item) -> float:
        path = item.nodeid.partition("::")[0]
        mixed = zlib.crc32(path.encode()) / 2**32
        return mixed / 2 if path.startswith(("tests/fleet", "tests/store")) else mixed

    items.sort(key=place)


@pytest.fixture(scope="session")
def shared_upstream() -> Iterator[LoopbackUpstream]:
    with LoopbackUpstream() as running:
        yield running


@pytest.fixture(scope="session")
def service(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """The ordinary service: every class on the shared upstream."""
    with Service(ordinary_spec(shared_upstream.base_url)) as running:
        yield running


@pytest.fixture
def upstream(shared_upstream: LoopbackUpstream) -> Iterator[LoopbackUpstream]:
    """The shared upstream, with nothing scripted and nothing recorded, before the test and after it."""
    shared_upstream.reset()
    yield shared_upstream
    shared_upstream.reset()


@pytest.fixture
def start_service() -> Iterator[StartService]:
    """Starts another service, which ends with the test."""
    with contextlib.ExitStack() as running:
        yield lambda spec: running.enter_context(Service(spec))
