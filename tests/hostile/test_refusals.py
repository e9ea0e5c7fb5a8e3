"""Clients that ignore their refusals: they are held back, so that those who are served stay served."""

import asyncio
import contextlib
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.debian import find_or_install
from tests.fault.upstream_process import Behaviour, UpstreamProcess
from tests.load import ConnectionPool, TimedReply, allow_many_files, chat_request
from tests.service import Deployment, ServiceProcess, wait_until
from tests.service_config import RouteSpec, ServiceSpec

SLOTS = 64
SERVED_MIN = 3_000
LEARNING = 4  # refusals of a connection, until it is made to wait for seconds
PAUSE_S = 3.0  # at least, between two refusals of it after that
FLOOD_S = 250  # far longer than the requests beside it take
TRIES = 5
WAITS_MAX = 5  # usually none or one; more if an upstream that is held up has all slots
FLOODING = 640
CREDIT_NANO = 10**14
SERVED = re.compile(r'^cadenza_requests_total{endpoint="chat",status="200"} (\S+)$', re.MULTILINE)
REFUSED = re.compile(r"^cadenza_refused_total{.*} (\S+)$", re.MULTILINE)
SCRIPT = """
wrk.method = "POST"
wrk.body = '{"model": "forte", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}'
wrk.headers["authorization"] = "Bearer %s"
wrk.headers["content-type"] = "application/json"
"""
pytestmark = pytest.mark.slow(reason="a flood")


@pytest.fixture(scope="module")
def wrk() -> str:
    return find_or_install("wrk", "wrk")


@pytest.fixture(scope="module")
def overloaded() -> Iterator[tuple[Deployment, ServiceProcess]]:
    """A service with 64 slots."""
    allow_many_files()
    with UpstreamProcess(Behaviour(reply_s=0.02)) as upstream:
        routes = {"forte": [RouteSpec("upstream", "upstream", silence_s=600.0)]}
        spec = ServiceSpec({"upstream": upstream.base_url}, routes, limits={"concurrency": SLOTS})
        with Deployment(spec, CREDIT_NANO) as deployment:
            yield deployment, deployment.start()


@contextlib.contextmanager
def flooding(wrk: str, process: ServiceProcess, key: str, script: Path) -> Iterator[None]:
    """Connections that ask again at once after every reply, until the block ends."""
    script.write_text(SCRIPT % key)
    url = f"http://127.0.0.1:{process.port}/v1/chat/completions"
    command = [wrk, "-t1", f"-c{FLOODING}", f"-d{FLOOD_S}s", "--timeout", "60s", "-s", str(script), url]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
        try:
            yield
            assert running.poll() is None, "the flood ended before"
        finally:
            running.kill()


def total(process: ServiceProcess, metric: re.Pattern[str]) -> int:
    return sum(int(float(count)) for count in metric.findall(process.get("/metrics")[1]))


def wait_for_more(process: ServiceProcess, metric: re.Pattern[str], count: int) -> None:
    before = total(process, metric)
    wait_until(lambda: total(process, metric) >= before + count, f"{count} more of {metric.pattern}")


def test_refusals_do_not_drown_the_service(
    wrk: str, overloaded: tuple[Deployment, ServiceProcess], tmp_path: Path
) -> None:
    """Connections that ignore their 429s are soon refused once in some seconds only, however fast they ask."""
    deployment, process = overloaded
    refused, began_s = total(process, REFUSED), time.monotonic()
    with flooding(wrk, process, deployment.key, tmp_path / "flood.lua"):
        wait_for_more(process, SERVED, SERVED_MIN)
        refused = total(process, REFUSED) - refused
        assert refused < FLOODING * (LEARNING + (time.monotonic() - began_s) / PAUSE_S)


def test_another_account_is_served(wrk: str, overloaded: tuple[Deployment, ServiceProcess], tmp_path: Path) -> None:
    """While one key floods the service from 640 connections, another account is served, after a short wait at most."""
    deployment, process = overloaded
    other = chat_request(deployment.create_key(deployment.create_account(CREDIT_NANO)))

    async def ask() -> list[TimedReply]:
        pool = ConnectionPool(process.port)
        replies = list[TimedReply]()
        for _ in range(TRIES):
            reply = await pool.ask(other)
            for _ in range(WAITS_MAX):
                if reply.status == 429:
                    await asyncio.sleep(int(reply.headers["retry-after-ms"]) / 1000)
                    reply = await pool.ask(other)
            replies.append(reply)
        pool.close()
        return replies

    with flooding(wrk, process, deployment.key, tmp_path / "flood.lua"):
        wait_for_more(process, REFUSED, FLOODING)
        replies = asyncio.run(ask())
    assert {reply.status for reply in replies} == {200}
