"""A store that stalls or is full: new requests wait or get 429, running ones are charged once it works again.

No reply is whole before its charge is durable, nothing is lost, and the service recovers by itself when the store does.
A reply waits for some seconds; then it ends with an error that says that it may still be charged.
"""

import asyncio
import contextlib
import resource
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fault.conftest import Deploy
from tests.fault.test_kill import CREDIT_NANO, USAGE, WORDS, begin
from tests.ledger_reader import usage_cost_nano
from tests.loopback import LoopbackUpstream, Pause, Whole
from tests.migrated import STORE_WAIT_S
from tests.raw_client import ChatRequest, Reply, send
from tests.service import Deployment, ServiceProcess, wait_until
from tests.service_config import classes_spec

COST_NANO = usage_cost_nano("forte", USAGE)
QUIET_S = 1.0
RETRIES = "cadenza_ledger_retries_total"


@contextlib.contextmanager
def write_lock(store: Path) -> Iterator[None]:
    """Another process holds the write lock during the block."""
    connecting = sqlite3.connect(store, timeout=STORE_WAIT_S, isolation_level=None)
    with contextlib.closing(connecting) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@contextlib.contextmanager
def no_space(process: ServiceProcess) -> Iterator[None]:
    """The process can write no file: neither the store nor, if that is a file, its log."""
    _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, most))
    yield
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))


async def all_stay_open(*replies: asyncio.Task[Reply]) -> bool:
    """Whether none of the replies ends within a second."""
    return not (await asyncio.wait(replies, timeout=QUIET_S, return_when=asyncio.FIRST_COMPLETED))[0]


def check_refused(reply: Reply) -> None:
    assert reply.status == 429, reply.raw
    assert int(reply.headers["retry-after"]) >= 1
    assert int(reply.headers["retry-after-ms"]) >= 1


def check_unconfirmed(shown: dict[str, Any], number: int) -> None:
    """It says that the charge may still be written, and by which id to look for it."""
    assert shown["error"]["type"] == "api_error"
    assert "may still be written, once" in shown["error"]["message"]
    assert ChatRequest(number).request_id in shown["error"]["message"]


@pytest.fixture(scope="module")
def locked(shared_upstream: LoopbackUpstream) -> Iterator[Deployment]:
    """One process for all tests of a locked store, so that each has request numbers of its own."""
    with Deployment(classes_spec(shared_upstream.base_url), CREDIT_NANO) as deployment:
        deployment.start()
        yield deployment


async def test_locked_store_delays_a_request(locked: Deployment, upstream: LoopbackUpstream) -> None:
    """A request that meets a locked store is served when the lock is released, and sends no byte before."""
    upstream.always(Whole(WORDS, USAGE))
    before_nano = locked.ledger.balance_nano
    requests, port = [ChatRequest(1), ChatRequest(2, stream=True)], locked.processes[0].port
    with write_lock(locked.store):
        replies = [asyncio.create_task(send(port, locked.key, request)) for request in requests]
        assert await all_stay_open(*replies)
    assert [reply.is_done for reply in await asyncio.gather(*replies)] == [True, True]
    assert before_nano - locked.ledger.balance_nano == 2 * COST_NANO
    locked.ledger.check()


async def test_locked_store_delays_the_end_of_a_stream(locked: Deployment, upstream: LoopbackUpstream) -> None:
    """A stream whose charge meets a locked store ends only when the charge is durable."""
    before_nano = locked.ledger.balance_nano
    replying, pause = await begin(locked, locked.processes[0], ChatRequest(3, stream=True), upstream)
    with write_lock(locked.store):
        pause.release()
        assert await all_stay_open(replying)
        assert locked.ledger.balance_nano == before_nano
    assert (await replying).is_done
    assert before_nano - locked.ledger.balance_nano == COST_NANO
    locked.ledger.check()


def test_long_lock_refuses_new_requests_and_ends_running_ones(locked: Deployment, upstream: LoopbackUpstream) -> None:
    """New requests get 429, and replies an error that says that they may still be charged; they are, once."""
    before_nano, port = locked.ledger.balance_nano, locked.processes[0].port
    upstream.always(Whole(WORDS, USAGE))
    assert asyncio.run(send(port, locked.key, ChatRequest(4))).is_done  # so that there is a reserve

    async def run() -> tuple[Reply, Reply]:
        streaming, pause = await begin(locked, locked.processes[0], ChatRequest(5, stream=True), upstream)
        second = Pause()
        upstream.script(Whole(WORDS, USAGE, second))
        replying = asyncio.create_task(send(port, locked.key, ChatRequest(6)))
        await asyncio.to_thread(second.wait_until_reached)
        with write_lock(locked.store):
            pause.release()
            second.release()
            check_refused(await send(port, locked.key, ChatRequest(7)))
            return await streaming, await replying

    stream, whole = asyncio.run(run())
    assert not stream.is_done
    check_unconfirmed(stream.events[-1], 5)
    assert (whole.status, whole.headers["x-should-retry"]) == (500, "false")
    check_unconfirmed(whole.json, 6)
    wait_until(lambda: locked.ledger.balance_nano == before_nano - 3 * COST_NANO, "three charges")
    locked.ledger.check()
    assert asyncio.run(send(port, locked.key, ChatRequest(8))).is_done


@pytest.mark.parametrize("has_piped_log", [True, False], ids=["store", "store and log"])
async def test_full_disk_refuses_new_requests_and_charges_running_ones(
    deploy: Deploy, upstream: LoopbackUpstream, has_piped_log: bool
) -> None:
    """While nothing can be written new requests are 429 and no stream is whole; with space again all recovers."""
    deployment = deploy(CREDIT_NANO)
    process = deployment.start(has_piped_log=has_piped_log)
    replying, pause = await begin(deployment, process, ChatRequest(1, stream=True), upstream)
    with no_space(process):
        pause.release()
        await asyncio.to_thread(wait_until, lambda: process.metric(RETRIES) > 0, "a charge that is not taken")
        for number in (2, 3):
            check_refused(await send(process.port, deployment.key, ChatRequest(number, stream=number == 3)))
        assert deployment.ledger.charges == 0
        check_refused(await send(process.port, deployment.key, ChatRequest(4)))
    reply = await replying
    if not reply.is_done:  # on a busy machine it may have waited for too long
        check_unconfirmed(reply.events[-1], 1)
    wait_until(lambda: CREDIT_NANO - deployment.ledger.balance_nano == COST_NANO, "the charge")
    deployment.ledger.check()
    assert (await send(process.port, deployment.key, ChatRequest(5))).is_done
