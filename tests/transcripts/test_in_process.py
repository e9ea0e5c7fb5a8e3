"""What the API promises, played in this process, without a socket."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.loopback import LoopbackUpstream
from tests.transcripts.claims import CLAIMS, NEED_PARTS, Stages
from tests.transcripts.stages import InProcess


@pytest.fixture(scope="module")
def stages(shared_upstream: LoopbackUpstream) -> Iterator[Stages]:
    with ExitStack() as stack:
        yield Stages(InProcess, shared_upstream, stack)
    shared_upstream.reset()


CASES = [
    pytest.param(name, id=name, marks=pytest.mark.parts(reason="it is about one") if name in NEED_PARTS else ())
    for name in CLAIMS
]


@pytest.mark.parametrize("name", CASES)
def test_claim(stages: Stages, name: str) -> None:
    """The claim holds in every case."""
    stages.play(name)
