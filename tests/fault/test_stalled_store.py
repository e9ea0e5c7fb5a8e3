"""A store that stalls or is full: new requests wait or are told to come back, what runs is settled when it can be.

No reply ends before its charge is durable, nothing is lost, and the service goes on by itself when the store does.
"""

import asyncio
import contextlib
import resource
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.books import usage_cost_nano
from tests.fault.conftest import StartFleet
from tests.fault.fleet import Fleet, Node, wait_until
from tests.fault.replies import Whole, counts
from tests.fault.wire import Ask, Seen, send
from tests.loopback import LoopbackUpstream, Pause

CREDIT_NANO = 10**9
WORDS = ["One", " two", " three", " four"]
USAGE = counts(23, 9, 4)
COST_NANO = usage_cost_nano("forte", USAGE)
QUIET_S = 0.7
PATIENCE_S = 25.0  # the service waits 10 s for a lock, and may have to do so twice


@contextlib.contextmanager
def write_lock(store: Path) -> Iterator[None]:
    """Another process is writing, and does not come to an end."""
    with contextlib.closing(sqlite3.connect(store, timeout=5.0, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@contextlib.contextmanager
def no_space(node: Node) -> Iterator[None]:
    """No file of the process can be written: neither the store nor, where it goes to a file, its log."""
    _, most = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (0, most))
    yield
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (most, most))


async def begin_stream(fleet: Fleet, node: Node, ask: Ask, upstream: LoopbackUpstream) -> asyncio.Task[Seen]:
    """A stream whose upstream waits in its middle, with everything that it has delivered marked."""
    pause = Pause()
    upstream.script(Whole(WORDS, USAGE, pause))
    reply = asyncio.create_task(send(node.port, fleet.key, ask))
    await asyncio.to_thread(pause.wait_until_reached)
    await asyncio.to_thread(wait_until, lambda: fleet.books.marked_tokens() == len(WORDS) - 1, "a mark")
    reply.add_done_callback(lambda _: pause.release())
    asyncio.get_running_loop().call_later(QUIET_S, pause.release)
    return reply


async def are_quiet(*replies: asyncio.Task[Seen]) -> bool:
    """Whether none of the replies comes to its end within a while."""
    return not (await asyncio.wait(replies, timeout=2 * QUIET_S, return_when=asyncio.FIRST_COMPLETED))[0]


def check_refused(seen: Seen) -> None:
    assert seen.status == 429, seen.raw
    assert int(seen.headers["retry-after"]) >= 1
    assert int(seen.headers["retry-after-ms"]) >= 1


@pytest.fixture
def fleet(make_fleet: StartFleet, upstream: LoopbackUpstream) -> Fleet:
    upstream.always(Whole(WORDS, USAGE))
    return make_fleet(CREDIT_NANO)


def test_short_stall_delays_a_hold(fleet: Fleet) -> None:
    """A request that meets a locked store is served when the lock goes, and not a byte of it before."""
    node = fleet.start()

    async def run() -> list[Seen]:
        asks = [Ask(1), Ask(2, stream=True)]
        with write_lock(fleet.store):
            replies = [asyncio.create_task(send(node.port, fleet.key, ask)) for ask in asks]
            assert await are_quiet(*replies)
        return await asyncio.gather(*replies)

    assert [seen.is_done for seen in asyncio.run(run())] == [True, True]
    assert CREDIT_NANO - fleet.books.balance_nano == 2 * COST_NANO
    fleet.books.prove()


def test_short_stall_delays_the_end_of_a_stream(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """A stream whose charge meets a locked store delivers its text, and its end when the charge is durable."""
    node = fleet.start()

    async def run() -> Seen:
        reply = await begin_stream(fleet, node, Ask(1, stream=True), upstream)
        with write_lock(fleet.store):
            assert await are_quiet(reply)
            assert fleet.books.charges == 0
        return await reply

    assert asyncio.run(run()).is_done
    assert CREDIT_NANO - fleet.books.balance_nano == COST_NANO
    fleet.books.prove()


def test_long_stall_refuses_the_new_and_settles_the_old(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """Past the time that a lock is waited for, new requests are 429; a stream that ran is settled after all."""
    node = fleet.start()

    async def run() -> Seen:
        reply = await begin_stream(fleet, node, Ask(1, stream=True), upstream)
        with write_lock(fleet.store):
            check_refused(await send(node.port, fleet.key, Ask(2), within_s=PATIENCE_S))
            assert not reply.done()
        return await reply

    assert asyncio.run(run()).is_done
    assert CREDIT_NANO - fleet.books.balance_nano == COST_NANO
    fleet.books.prove()
    assert asyncio.run(send(node.port, fleet.key, Ask(3))).is_done


@pytest.mark.parametrize("has_piped_log", [True, False], ids=["of the store", "of the store and the log"])
def test_full_disk_refuses_the_new_and_settles_the_old(
    fleet: Fleet, upstream: LoopbackUpstream, has_piped_log: bool
) -> None:
    """While nothing can be written new requests are 429 and no stream ends; with space again all goes on by itself."""
    node = fleet.start(has_piped_log=has_piped_log)

    async def run() -> Seen:
        reply = await begin_stream(fleet, node, Ask(1, stream=True), upstream)
        with no_space(node):
            for number in range(2, 6):
                check_refused(
                    await send(node.port, fleet.key, Ask(number, stream=number % 2 == 0), within_s=PATIENCE_S)
                )
            assert await are_quiet(reply)
            check_refused(await send(node.port, fleet.key, Ask(6), within_s=PATIENCE_S))
        assert fleet.books.charges == 0
        return await reply

    assert asyncio.run(run()).is_done
    assert CREDIT_NANO - fleet.books.balance_nano == COST_NANO
    fleet.books.prove()
    assert asyncio.run(send(node.port, fleet.key, Ask(7))).is_done
    fleet.cli("ledger", "check")
