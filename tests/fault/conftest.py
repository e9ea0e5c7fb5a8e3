"""Fleets on the shared upstream, and the seed of what is random, which is shown where a test fails."""

import contextlib
import os
import secrets
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.fault.fleet import Fleet
from tests.fault.leaks import Bed, made_bed
from tests.loopback import LoopbackUpstream

StartFleet = Callable[[int], Fleet]


@pytest.fixture(scope="module")
def shared_bed() -> Iterator[Bed]:
    with made_bed() as bed:
        yield bed


@pytest.fixture
def bed(shared_bed: Bed) -> Bed:
    """A service on an upstream of its own, with every route fit and nothing under way."""
    shared_bed.make_ready()
    return shared_bed


@pytest.fixture
def make_fleet(upstream: LoopbackUpstream) -> Iterator[StartFleet]:
    """A fleet whose account has so many nano-dollars; it ends with the test."""
    with contextlib.ExitStack() as running:
        yield lambda credit_nano: running.enter_context(Fleet(upstream.base_url, credit_nano))


@pytest.fixture
def seed() -> int:
    """$CADENZA_FAULT_SEED replays a run; pytest shows the line below where the test fails."""
    chosen = int(os.environ.get("CADENZA_FAULT_SEED") or secrets.randbits(32))
    sys.stdout.write(f"CADENZA_FAULT_SEED={chosen}\n")
    return chosen
