"""Clients that ignore their refusals: they are held back, so that those who are served stay served."""

import asyncio
import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.debian import find_or_install
from tests.fault.upstream_process import Behaviour, UpstreamProcess
from tests.load import ConnectionPool, TimedReply, allow_many_files, chat_request
from tests.service import Deployment, ServiceProcess, wait_until
from tests.service_config import RouteSpec, ServiceSpec

SLOTS = 64
MANY = 2_000
FEW_WARM_S, MANY_WARM_S = 2, 5  # to connect, and to learn to wait
COUNTED_S = 3
MEASUREMENTS = 5  # at most: on a busy machine one of them may have had less of it than the other
FLOOD_S = 250  # far longer than the requests beside it take
TRIES = 5
WAITS_MAX = 3  # usually none or one; more if an upstream that is held up has all slots
FLOODING = 640
CREDIT_NANO = 10**14
REFUSED = re.compile(r"^cadenza_refused_total{.*} (\S+)$", re.MULTILINE)
SERVED = re.compile(r"served (\d+)")
SCRIPT = """
wrk.method = "POST"
wrk.body = '{"model": "forte", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}'
wrk.headers["authorization"] = "Bearer %s"
wrk.headers["content-type"] = "application/json"
served = 0
local from = os.time() + %d
local to = from + %d
local threads = {}
function setup(thread) table.insert(threads, thread) end
function response(status)
  local now = os.time()
  if status == 200 and now >= from and now < to then served = served + 1 end
end
function done()
  local sum = 0
  for _, thread in ipairs(threads) do sum = sum + thread:get("served") end
  print("served " .. sum)
end
"""


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


def flood_command(process: ServiceProcess, key: str, script: Path, connections: int, warm_s: int = 0) -> list[str]:
    """Connections that ask again at once after every reply, until some time after those that are counted."""
    script.write_text(SCRIPT % (key, warm_s, COUNTED_S))
    url = f"http://127.0.0.1:{process.port}/v1/chat/completions"
    lasts_s = warm_s + COUNTED_S + 1 if warm_s else FLOOD_S
    return ["-t1", f"-c{connections}", f"-d{lasts_s}s", "--timeout", "60s", "-s", str(script), url]


def count_served(command: list[str]) -> int:
    """How many requests were served in COUNTED_S, after the warm-up."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    found = SERVED.search(done.stdout)
    assert found, done.stdout
    return int(found[1])


def count_refused(process: ServiceProcess) -> int:
    return sum(int(float(count)) for count in REFUSED.findall(process.get("/metrics")[1]))


@contextlib.contextmanager
def flooding(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A flood that ends with the block."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
        try:
            yield running
        finally:
            running.kill()


def test_refusals_do_not_drown_the_service(
    wrk: str, overloaded: tuple[Deployment, ServiceProcess], tmp_path: Path
) -> None:
    """2,000 connections that ignore their 429s leave at least half of what 64 connections are served."""
    deployment, process = overloaded
    for _ in range(MEASUREMENTS):
        few, many = (
            count_served([wrk, *flood_command(process, deployment.key, tmp_path / "flood.lua", connections, warm_s)])
            for connections, warm_s in ((SLOTS, FEW_WARM_S), (MANY, MANY_WARM_S))
        )
        if many >= few / 2:
            break
    assert many >= few / 2, (few, many)


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

    command = [wrk, *flood_command(process, deployment.key, tmp_path / "flood.lua", FLOODING)]
    refused_before = count_refused(process)
    with flooding(command) as flood:
        wait_until(lambda: count_refused(process) > refused_before + FLOODING, "the flood being refused")
        replies = asyncio.run(ask())
        assert flood.poll() is None, "the flood ended before"
    assert {reply.status for reply in replies} == {200}
