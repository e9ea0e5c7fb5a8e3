"""A Postgres cluster and a fleet for each test process, and the shared state between gateways."""

from collections.abc import Iterator

import pytest

from tests.fleet.cluster import Cluster, running_cluster
from tests.fleet.fleet import Fleet, FleetSpec, running_fleet
from tests.fleet.requests import USAGE, WORDS
from tests.loopback import LoopbackUpstream, Whole
from tests.valkey import Valkey, running_valkey


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


@pytest.fixture(scope="session")
def fleet_upstream() -> Iterator[LoopbackUpstream]:
    with LoopbackUpstream() as running:
        yield running


@pytest.fixture(scope="session")
def fleet(cluster: Cluster, fleet_upstream: LoopbackUpstream) -> Iterator[Fleet]:
    """Three gateways for all files that need no others, with links that a test can break."""
    with running_fleet(cluster, FleetSpec(fleet_upstream.base_url, has_links=True)) as running:
        yield running


@pytest.fixture
def upstream(fleet_upstream: LoopbackUpstream) -> Iterator[LoopbackUpstream]:
    """The upstream of the fleets. It answers with WORDS and USAGE unless the test says otherwise."""
    fleet_upstream.reset()
    fleet_upstream.always(Whole(WORDS, USAGE))
    yield fleet_upstream
    fleet_upstream.reset()


@pytest.fixture(scope="module")
def state() -> Iterator[Valkey]:
    """A Valkey or Redis server for each file."""
    with running_valkey() as running:
        yield running
