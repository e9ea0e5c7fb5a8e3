"""What the API charges, played by `cadenza serve` on Postgres."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.loopback import LoopbackUpstream
from tests.postgres import running_postgres
from tests.transcripts.claims import CHARGED, Stages
from tests.transcripts.stages import Process


@pytest.fixture(scope="module")
def stages(shared_upstream: LoopbackUpstream) -> Iterator[Stages]:
    with running_postgres() as server, ExitStack() as stack:
        yield Stages(Process, shared_upstream, stack, lambda: stack.enter_context(server.migrated_database()))
    shared_upstream.reset()


@pytest.mark.parametrize("name", CHARGED, ids=[*CHARGED])
def test_claim(stages: Stages, name: str) -> None:
    """What is charged is the same as on SQLite."""
    stages.play(name)
