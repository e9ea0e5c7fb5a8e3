"""A Postgres cluster for each test process, a fleet for each file, and the shared state between gateways."""

from collections.abc import Iterator

import pytest

from tests.fleet.cluster import Cluster, running_cluster
from tests.fleet.requests import USAGE, WORDS
from tests.fleet.state import StateServer, running_state
from tests.loopback import LoopbackUpstream, Whole


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


@pytest.fixture(scope="session")
def fleet_upstream() -> Iterator[LoopbackUpstream]:
    with LoopbackUpstream() as running:
        yield running


@pytest.fixture
def upstream(fleet_upstream: LoopbackUpstream) -> Iterator[LoopbackUpstream]:
    """The upstream of the fleets. It answers with WORDS and USAGE unless the test says otherwise."""
    fleet_upstream.reset()
    fleet_upstream.always(Whole(WORDS, USAGE))
    yield fleet_upstream
    fleet_upstream.reset()


@pytest.fixture(scope="module")
def state() -> Iterator[StateServer]:
    """A Valkey or Redis server for each file."""
    with running_state() as running:
        yield running
