"""Postgres killed, slow, stalled, read-only and out of connections, and locked accounts.

The gateways refuse within a bounded time what they cannot charge, and serve again without a restart of ours.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable

import asyncpg  # type: ignore[import-untyped]
import pytest

from tests.fleet.cluster import Cluster
from tests.fleet.fleet import Fleet, stalled
from tests.fleet.requests import Clients, check_charges, disturbed
from tests.fleet.streams import RunningStreams
from tests.loopback import LoopbackUpstream
from tests.raw_client import Reply

REFUSED_S = 10.0  # about 1 s on an idle machine
FAULT_S = 1.5
LOCKED = 5  # accounts
NOTICED_S = 3.0  # more than a process relies on what the store confirmed
HANGS_S = 20.0
SERVED_SHARE = 0.8  # on a busy machine, Postgres may not answer in time now and then
DELAY_S = 0.05
READ_ONLY = "ALTER SYSTEM SET default_transaction_read_only = {}"
RELOAD = "SELECT pg_reload_conf()"
DROP = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cadenza'"
pytestmark = pytest.mark.slow(reason="faults of Postgres under load")

Fault = Callable[[Fleet, Cluster], contextlib.AbstractAsyncContextManager[None]]


async def check_refusals(clients: Clients, waiting: asyncio.TaskGroup) -> None:
    """While a fault goes on, every request and /readyz of every gateway are answered within a bounded time.

    Requests that were admitted before the gateways noticed the fault are finished, which may take until its end.
    """
    for port in clients.fleet.ports:
        waiting.create_task(clients.send(clients.new_request(), port))
    await asyncio.sleep(NOTICED_S)
    ended_s = time.monotonic() + FAULT_S
    while time.monotonic() < ended_s:
        for reply in await asyncio.gather(*(timed(clients, port) for port in clients.fleet.ports)):
            assert reply.status == 429, reply.raw
            assert int(reply.headers["retry-after"]) >= 1
        for gateway in clients.fleet.gateways:
            began_s = time.monotonic()
            assert (await asyncio.to_thread(gateway.process.get, "/readyz"))[0] == 503
            assert time.monotonic() - began_s < REFUSED_S, "/readyz hangs"
        await asyncio.sleep(0.1)


async def timed(clients: Clients, port: int) -> Reply:
    began_s = time.monotonic()
    reply = await clients.send(clients.new_request(), port, within_s=HANGS_S)
    took_s = time.monotonic() - began_s
    assert took_s < REFUSED_S, f"{reply.status} after {took_s:.1f} s"
    return reply


def check_money(clients: Clients) -> None:
    clients.fleet.check()
    clients.check_charges()


@contextlib.asynccontextmanager
async def killed(_fleet: Fleet, cluster: Cluster) -> AsyncIterator[None]:
    await asyncio.to_thread(cluster.kill)
    yield
    await asyncio.to_thread(cluster.start)


@contextlib.asynccontextmanager
async def stalled_for_all(fleet: Fleet, _cluster: Cluster) -> AsyncIterator[None]:
    with contextlib.ExitStack() as all_stalled:
        for gateway in fleet.gateways:
            all_stalled.enter_context(stalled(gateway))
        yield


@contextlib.asynccontextmanager
async def read_only(_fleet: Fleet, cluster: Cluster) -> AsyncIterator[None]:
    """The database accepts no write."""
    set_read_only(cluster, "on")
    try:
        yield
    finally:
        set_read_only(cluster, "off")


@contextlib.asynccontextmanager
async def without_connections(fleet: Fleet, _cluster: Cluster) -> AsyncIterator[None]:
    """All connections of Postgres are taken by others."""
    async with contextlib.AsyncExitStack() as taken:
        first = await taken.enter_async_context(fleet.ledger.session())
        is_full = False
        while await first.fetch(DROP) or not is_full:  # until all connections are ours
            try:
                await taken.enter_async_context(fleet.ledger.session())
                is_full = False
            except asyncpg.TooManyConnectionsError:
                is_full = True
        yield


def set_read_only(cluster: Cluster, value: str) -> None:
    cluster.execute(READ_ONLY.format(value))
    cluster.execute(RELOAD)


@pytest.mark.parametrize("fault", [killed, stalled_for_all, read_only, without_connections])
async def test_a_lost_postgres_is_refused_soon(
    fleet: Fleet, cluster: Cluster, upstream: LoopbackUpstream, fault: Fault
) -> None:
    """Lost in any way under load: new requests are refused soon, running streams end right, and all is served again."""
    clients = Clients(fleet)
    streams = RunningStreams(clients, upstream)
    await streams.begin(6, fleet.ports)
    async with clients.load(4), asyncio.TaskGroup() as waiting:
        async with fault(fleet, cluster):
            streams.release()
            await check_refusals(clients, waiting)
        await clients.check_recovery()
    await streams.end()
    check_money(clients)


async def test_slow_postgres_slows_and_breaks_nothing(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """With 50 ms added to every message of Postgres, requests are still served and charged, and none breaks off."""
    clients = Clients(fleet)
    try:
        for gateway in fleet.gateways:
            gateway.store.delay_s = DELAY_S
        async with clients.load():
            await clients.wait_for_replies(50)
    finally:
        for gateway in fleet.gateways:
            gateway.store.delay_s = 0.0
    broken = [sent.reply for sent in clients.sent if not sent.reply.is_done]
    late = b"did not confirm the charge"  # on a busy machine the delays may add up to this, or to a refusal
    assert [reply.raw for reply in broken if reply.status != 429 and late not in reply.raw] == []
    check_money(clients)


async def test_locked_accounts_do_not_keep_others_from_being_served(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """While a session locks some accounts, the requests of another account are served, and soon; theirs are refused."""
    locked, others = [Clients(fleet) for _ in range(LOCKED)], Clients(fleet)
    async with fleet.ledger.session() as session, session.transaction():
        emails = [clients.email for clients in locked]
        await session.fetch("SELECT id FROM accounts WHERE email = ANY($1) FOR UPDATE", emails)
        async with asyncio.TaskGroup() as waiting, others.load(6, fleet.ports):
            for clients, port in itertools.product(locked, fleet.ports):
                waiting.create_task(clients.send(clients.new_request(), port, within_s=HANGS_S))
            await asyncio.sleep(FAULT_S)
    for clients in locked:
        assert {sent.reply.status for sent in clients.sent} == {429}
        assert (await clients.send_patiently(clients.new_request())).is_done
    assert disturbed(others.sent) == []
    assert sum(sent.reply.is_done for sent in others.sent) > SERVED_SHARE * len(others.sent)
    assert max(sent.took_s for sent in others.sent) < REFUSED_S
    fleet.check()
    check_charges([*locked, others])
