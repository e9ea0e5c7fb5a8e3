"""16. Out of memory: with the address space bounded, large bodies at once are refused with 429, and nothing dies."""

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.hostile.started import Started, started
from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient, Reply
from tests.service import Deployment
from tests.service_config import classes_spec

MIB = 2**20
BODIES = 8
BODY_BYTES = 20 * MIB
WORDS = b"The quick brown fox jumps over the lazy dog. "
TEXT = WORDS * (BODY_BYTES // len(WORDS))
pytestmark = pytest.mark.slow(reason="fills the memory of a process")


@pytest.fixture(scope="module")
def deployment(shared_upstream: LoopbackUpstream) -> Iterator[Deployment]:
    shared_upstream.reset()
    with Deployment(classes_spec(shared_upstream.base_url), 10**15) as made:
        yield made


@pytest.fixture(scope="module")
def size_bytes(deployment: Deployment) -> int:
    """The address space that a process takes right after its start."""
    with started(deployment) as running:
        return size_of(running)


def size_of(running: Started) -> int:
    """The address space that the process takes."""
    status = Path(f"/proc/{running.pid}/status").read_text()
    found = re.search(r"^VmSize:\s+(\d+) kB", status, re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def body_of(number: int) -> bytes:
    return b'{"messages":[{"role":"user","content":"%d. %b"}],"max_tokens":5}' % (number, TEXT)


def send_all(wire: RawClient) -> list[Reply]:
    with ThreadPoolExecutor(BODIES) as clients:
        return list(clients.map(wire.post, [body_of(number) for number in range(BODIES)]))


@pytest.mark.parametrize("room_mib", [128, 576])
def test_large_bodies_in_little_memory_are_refused(deployment: Deployment, size_bytes: int, room_mib: int) -> None:
    """Each of eight large bodies at once is served, found too long or refused with 429 and a wait: none gets a 500."""
    limit = size_bytes + room_mib * MIB
    with started(deployment, prefix=("prlimit", f"--as={limit}")) as running:
        wire = RawClient(running.port, deployment.key)
        replies = send_all(wire)
        statuses = Counter(reply.status for reply in replies)
        assert set(statuses) <= {200, 400, 429}, statuses
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in replies if reply.status == 429)
        assert wire.chat().status == 200
