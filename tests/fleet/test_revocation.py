"""Keys that are revoked while all gateways use them: after `key revoke` returns, no gateway accepts them again.

$CADENZA_FLEET_REVOCATIONS makes the run longer.
"""

import asyncio
import os
from collections.abc import Iterator

import pytest

from cadenza.control.account.accounts import get_owner
from cadenza.control.keys import KeyOrder, create_key, revoke_key
from cadenza.core.records import COMMAND_LINE
from cadenza.store.address import open_store
from cadenza.store.store import Store
from tests.fleet.cluster import STORE_WAIT_S
from tests.fleet.fleet import Fleet, cut_off, stopped
from tests.fleet.requests import Clients, disturbed
from tests.fleet.streams import BEGUN, RunningStreams
from tests.fleet.test_gateway_faults import Separation
from tests.ledger_reader import delivered_cost_nano
from tests.load import ConnectionPool
from tests.loopback import LoopbackUpstream
from tests.service import now_ms

REVOCATIONS = int(os.environ.get("CADENZA_FLEET_REVOCATIONS") or 60)
AT_ONCE = 4
SENT_S = 0.2  # for requests to arrive in the kernel's queue
ENDED_S = 30.0  # within a second on an idle machine; without an end they go on
pytestmark = pytest.mark.slow(reason="a fleet under load")


def models_request(key: str) -> bytes:
    return (
        f"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
        "x-forwarded-for: 127.0.0.1\r\n\r\n"
    ).encode()


def revoke(clients: Clients) -> None:
    """As the command does: it returns when no gateway accepts the key any more."""
    clients.fleet.ledger.control(lambda store: revoke_key(store, COMMAND_LINE, clients.key, now_ms()))


class Revoker:
    """Creates keys, uses each at every gateway, revokes it, and uses it again at every gateway."""

    def __init__(self, fleet: Fleet, store: Store, email: str) -> None:
        self.accepted_after = 0
        self.refused_after = 0
        self.refused_before = 0
        self._store = store
        self._email = email
        self._pools = [ConnectionPool(port) for port in fleet.ports]

    async def work(self, numbers: Iterator[int]) -> None:
        for _ in numbers:
            key, _ = await create_key(self._store, await get_owner(self._store, self._email), KeyOrder(), now_ms())
            self.refused_before += (await self._statuses(key)).count(401)
            await revoke_key(self._store, COMMAND_LINE, key, now_ms())
            after = await self._statuses(key)
            self.accepted_after += after.count(200)
            self.refused_after += after.count(401)

    async def _statuses(self, key: str) -> list[int]:
        replies = await asyncio.gather(*(pool.ask(models_request(key)) for pool in self._pools))
        return [reply.status for reply in replies]

    def close(self) -> None:
        for pool in self._pools:
            pool.close()


async def test_no_gateway_accepts_a_key_after_its_revocation(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """Of many keys that are revoked under load, none is accepted by any gateway after `key revoke` returned."""
    clients, numbers = Clients(fleet), iter(range(REVOCATIONS))
    store = open_store(fleet.ledger.url, STORE_WAIT_S)
    revoker = Revoker(fleet, store, clients.email)
    try:
        async with clients.load(4), asyncio.TaskGroup() as workers:
            for _ in range(AT_ONCE):
                workers.create_task(revoker.work(numbers))
    finally:
        revoker.close()
        await store.close()
    assert (revoker.refused_before, revoker.accepted_after) == (0, 0)
    assert revoker.refused_after > REVOCATIONS, "on a busy machine some may get 429 instead"
    assert disturbed(clients.sent) == []
    fleet.check()
    clients.check_charges()


async def test_running_streams_of_a_revoked_key_are_ended(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """Streams of a revoked key end with an error on every gateway and are charged for what was delivered."""
    clients = Clients(fleet)
    streams = RunningStreams(clients, upstream)
    await streams.begin(6, fleet.ports)
    await asyncio.to_thread(revoke, clients)
    async with asyncio.timeout(ENDED_S):
        for reply in await streams.gather():
            assert not reply.is_done
            assert reply.events[-1]["error"]["type"] == "api_error"
    fleet.check()
    rows = fleet.ledger.rows()
    for sent in clients.sent:
        if sent.reply.status == 429:
            continue
        [row] = rows[sent.request.request_id]
        assert row.cost_nano == delivered_cost_nano("forte", sent.request.content, [BEGUN])


@pytest.mark.parametrize("separated", [stopped, cut_off])
async def test_gateway_that_was_apart_does_not_accept_a_revoked_key(
    fleet: Fleet, upstream: LoopbackUpstream, separated: Separation
) -> None:
    """Stopped or cut off from Postgres while a key that it knew is revoked, a gateway does not accept it afterwards."""
    clients, apart = Clients(fleet), fleet.gateways[0]
    assert (await clients.send_patiently(clients.new_request(), apart.port)).is_done
    with separated(apart):
        await asyncio.to_thread(revoke, clients)
        waiting = [asyncio.create_task(clients.send(clients.new_request(), apart.port)) for _ in range(5)]
        await asyncio.sleep(SENT_S)
    assert {reply.status for reply in await asyncio.gather(*waiting)} <= {401, 429}
    assert (await clients.send_patiently(clients.new_request(), apart.port)).status == 401
    fleet.check()
    clients.check_charges()
