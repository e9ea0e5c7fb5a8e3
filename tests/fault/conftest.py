"""Deployments on the shared upstream, and the rig for upstream faults."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.fault.rig import FaultRig, running_rig
from tests.loopback import LoopbackUpstream
from tests.service import Deployment
from tests.service_config import classes_spec

Deploy = Callable[[int], Deployment]


@pytest.fixture(scope="session")
def shared_rig() -> Iterator[FaultRig]:
    with running_rig() as rig:
        yield rig


@pytest.fixture
def rig(shared_rig: FaultRig) -> FaultRig:
    """A service on an upstream of its own, with every route healthy and no request in flight."""
    shared_rig.make_ready()
    return shared_rig


@pytest.fixture
def deploy(upstream: LoopbackUpstream) -> Iterator[Deploy]:
    """Makes a deployment whose account has so much credit; it ends with the test."""
    with contextlib.ExitStack() as running:
        yield lambda credit_nano: running.enter_context(Deployment(classes_spec(upstream.base_url), credit_nano))
