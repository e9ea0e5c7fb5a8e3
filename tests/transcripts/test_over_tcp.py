"""What the API promises, played by `cadenza serve` over TCP, on SQLite."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.loopback import LoopbackUpstream
from tests.transcripts.claims import CHEAP, Stages
from tests.transcripts.stages import Process


@pytest.fixture(scope="module")
def stages(shared_upstream: LoopbackUpstream) -> Iterator[Stages]:
    with ExitStack() as stack:
        yield Stages(Process, shared_upstream, stack)
    shared_upstream.reset()


@pytest.mark.parametrize("name", CHEAP, ids=[*CHEAP])
def test_claim(stages: Stages, name: str) -> None:
    """The claim holds in its first cases."""
    stages.play(name)
