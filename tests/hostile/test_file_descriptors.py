"""A service with few file descriptors: it refuses what it cannot serve, and does not blame the upstream."""

import asyncio
import collections
import contextlib
import socket
from collections.abc import Iterator

import pytest

from tests.hostile.started import Started, started
from tests.loopback import LoopbackUpstream
from tests.raw_client import ChatRequest, RawClient, Reply, read_all, send
from tests.service import Deployment, wait_until
from tests.service_config import classes_spec

pytestmark = pytest.mark.slow(reason="opens connections up to the limit")

FILES_MAX = 64
STREAMS = 120
IDLE = 120
TIMEOUT_S = 100.0


@pytest.fixture
def deployment(upstream: LoopbackUpstream) -> Iterator[Deployment]:
    with Deployment(classes_spec(upstream.base_url)) as made:
        yield made


@pytest.fixture
def process(deployment: Deployment) -> Iterator[Started]:
    with started(deployment, prefix=("prlimit", f"--nofile={FILES_MAX}")) as running:
        yield running


def outcome(reply: Reply) -> str:
    if reply.status == 200:
        return "served" if reply.is_done else "broken off"
    return str(reply.status) if reply.is_complete else "no reply"


async def all_at_once(port: int, key: str, numbers: range) -> list[Reply]:
    requests = [ChatRequest(number, stream=True) for number in numbers]
    return await asyncio.gather(*(send(port, key, request) for request in requests))


def test_more_streams_than_descriptors(deployment: Deployment, process: Started) -> None:
    """With 64 descriptors each of 120 streams is served whole or refused with 429; none breaks off, none is a 502."""
    for first in (0, STREAMS):
        replies = asyncio.run(all_at_once(process.port, deployment.key, range(first, first + STREAMS)))
        outcomes = collections.Counter(outcome(reply) for reply in replies)
        print(outcomes)  # noqa: T201
        assert outcomes.keys() <= {"served", "429"}
        assert outcomes["served"] > 0
        for reply in replies:
            if reply.status == 429:
                assert int(reply.headers["retry-after"]) >= 1
                reply.error(429, "rate_limit_error")


def test_idle_connections_up_to_the_limit(deployment: Deployment, process: Started) -> None:
    """Idle connections beyond the limit are closed, the idlest first, and chats are served as if there were none."""
    api = RawClient(process.port, deployment.key)
    with contextlib.ExitStack() as opened:
        idle = [opened.enter_context(socket.create_connection(("127.0.0.1", process.port))) for _ in range(IDLE)]
        replies = [api.chat(stream=True) for _ in range(5)]
        assert [outcome(reply) for reply in replies] == ["served"] * 5
        wait_until(lambda: process.get("/readyz")[0] == 200, "the service being ready")
        idle[0].settimeout(TIMEOUT_S)
        assert read_all(idle[0]) == b""
