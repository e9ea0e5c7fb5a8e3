"""Clients that ignore their refusals: they are held back, so that those who are served stay served."""

import asyncio
import re
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.debian import find_or_install
from tests.fault.upstream_process import Behaviour, UpstreamProcess
from tests.load import ConnectionPool, TimedReply, allow_many_files, chat_request
from tests.service import Deployment, ServiceProcess
from tests.service_config import RouteSpec, ServiceSpec

SLOTS = 64
MANY = 2_000
SECONDS = 9
WARM_S = 5  # to connect, and to learn to wait
TRIES = 30
CREDIT_NANO = 10**14
SERVED = re.compile(r"served (\d+)")
SCRIPT = """
wrk.method = "POST"
wrk.body = '{"model": "forte", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}'
wrk.headers["authorization"] = "Bearer %s"
wrk.headers["content-type"] = "application/json"
served = 0
local from = os.time() + %d
local threads = {}
function setup(thread) table.insert(threads, thread) end
function response(status) if status == 200 and os.time() >= from then served = served + 1 end end
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


def flood(wrk: str, port: int, key: str, folder: Path, connections: int) -> int:
    """How many requests were served to so many connections, each of which asks again at once after every reply.

    Those of the first seconds are not counted.
    """
    script = folder / f"{connections}.lua"
    script.write_text(SCRIPT % (key, WARM_S))
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    command = [wrk, "-t1", f"-c{connections}", f"-d{SECONDS}s", "--timeout", "60s", "-s", str(script), url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    found = SERVED.search(done.stdout)
    assert found, done.stdout
    return int(found[1])


def test_refusals_do_not_drown_the_service(
    wrk: str, overloaded: tuple[Deployment, ServiceProcess], tmp_path: Path
) -> None:
    """2,000 connections that ignore their 429s leave at least half of what 64 connections are served."""
    deployment, process = overloaded
    few, many = (flood(wrk, process.port, deployment.key, tmp_path, count) for count in (SLOTS, MANY))
    assert many >= few / 2


def test_another_account_is_served(wrk: str, overloaded: tuple[Deployment, ServiceProcess], tmp_path: Path) -> None:
    """While one key floods the service from 640 connections, another account is served, after one wait at most."""
    deployment, process = overloaded
    other = chat_request(deployment.create_key(deployment.create_account(CREDIT_NANO)))
    ended = threading.Event()

    async def ask() -> list[TimedReply]:
        pool = ConnectionPool(process.port)
        replies = list[TimedReply]()
        while len(replies) < TRIES and not ended.is_set():
            reply = await pool.ask(other)
            if reply.status == 429:
                await asyncio.sleep(int(reply.headers["retry-after-ms"]) / 1000)
                reply = await pool.ask(other)
            replies.append(reply)
        pool.close()
        return replies

    with ThreadPoolExecutor() as threads:
        flooding = threads.submit(flood, wrk, process.port, deployment.key, tmp_path, 640)
        flooding.add_done_callback(lambda _: ended.set())
        replies = asyncio.run(ask())
        flooding.result()
    assert len(replies) >= 3, "on a busy machine each takes seconds"
    assert {reply.status for reply in replies} == {200}
