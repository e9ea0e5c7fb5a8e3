"""Keys that are revoked while all gateways use them: after `key revoke` returns, no gateway accepts them again.

$CADENZA_FLEET_REVOCATIONS makes the run longer.
"""

import asyncio
import os
import secrets
import signal
from collections.abc import Iterator

import pytest

from cadenza.control.keys import revoke_key
from cadenza.core.codes import digest_key, display_prefix, make_key
from cadenza.store.address import open_store
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import keys
from cadenza.store.tables.keys import NewKey
from tests.fleet.cluster import STORE_WAIT_S, Cluster
from tests.fleet.fleet import Fleet, FleetSpec, running_fleet
from tests.fleet.requests import Clients, disturbed
from tests.fleet.streams import BEGUN, RunningStreams
from tests.ledger_reader import delivered_cost_nano
from tests.load import ConnectionPool
from tests.loopback import LoopbackUpstream
from tests.service import now_ms

REVOCATIONS = int(os.environ.get("CADENZA_FLEET_REVOCATIONS") or 60)
AT_ONCE = 4
SENT_S = 0.2  # for requests to arrive in the kernel's queue
ENDED_S = 30.0  # within a second on an idle machine; without an end they go on
ACCOUNT_ID = "SELECT id FROM accounts WHERE email = $1"
pytestmark = pytest.mark.slow(reason="a fleet under load")


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, fleet_upstream: LoopbackUpstream) -> Iterator[Fleet]:
    with running_fleet(cluster, FleetSpec(fleet_upstream.base_url, has_links=True)) as running:
        yield running


def create_keys(fleet: Fleet, email: str, count: int) -> list[str]:
    """Many keys in one transaction."""
    [(account_id,)] = fleet.ledger.query(ACCOUNT_ID, email)
    made = [make_key() for _ in range(count)]

    def add(tx: Transaction) -> None:
        for key in made:
            new = NewKey(
                id="key_" + secrets.token_urlsafe(18),
                account_id=account_id,
                name="",
                prefix=display_prefix(key),
                scopes=frozenset(),
                created_at=now_ms(),
                expires_at=None,
            )
            keys.add(tx, new, digest_key(key.encode()))

    fleet.ledger.control(lambda store: store.transact(add))
    return made


def models_request(key: str) -> bytes:
    return (
        f"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
        "x-forwarded-for: 127.0.0.1\r\n\r\n"
    ).encode()


def revoke(clients: Clients) -> None:
    """As the command does: it returns when no gateway accepts the key any more."""
    clients.fleet.ledger.control(lambda store: revoke_key(store, clients.key, now_ms()))


class Revoker:
    """Uses each key at every gateway, revokes it, and uses it again at every gateway."""

    def __init__(self, fleet: Fleet, store: Store) -> None:
        self.accepted_after = 0
        self.refused_after = 0
        self.refused_before = 0
        self._store = store
        self._pools = [ConnectionPool(port) for port in fleet.ports]

    async def work(self, waiting: Iterator[str]) -> None:
        for key in waiting:
            self.refused_before += (await self._statuses(key)).count(401)
            await revoke_key(self._store, key, now_ms())
            after = await self._statuses(key)
            self.accepted_after += after.count(200)
            self.refused_after += after.count(401)

    async def _statuses(self, key: str) -> list[int]:
        replies = await asyncio.gather(*(pool.ask(models_request(key)) for pool in self._pools))
        return [reply.status for reply in replies]

    def close(self) -> None:
        for pool in self._pools:
            pool.close()


def test_no_gateway_accepts_a_key_after_its_revocation(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """Of many keys that are revoked under load, none is accepted by any gateway after `key revoke` returned."""
    clients = Clients(fleet)
    waiting = iter(create_keys(fleet, clients.email, REVOCATIONS))

    async def run() -> Revoker:
        store = open_store(fleet.ledger.url, STORE_WAIT_S)
        revoker = Revoker(fleet, store)
        try:
            async with clients.load(4), asyncio.TaskGroup() as workers:
                for _ in range(AT_ONCE):
                    workers.create_task(revoker.work(waiting))
        finally:
            revoker.close()
            await store.close()
        return revoker

    revoker = asyncio.run(run())
    assert (revoker.refused_before, revoker.accepted_after) == (0, 0)
    assert revoker.refused_after > REVOCATIONS, "on a busy machine some may get 429 instead"
    assert disturbed(clients.sent) == []
    fleet.check()
    clients.check_charges()


def test_running_streams_of_a_revoked_key_are_ended(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """Streams of a revoked key end with an error on every gateway and are charged for what was delivered."""
    clients = Clients(fleet)

    async def run() -> None:
        streams = RunningStreams(clients, upstream)
        await streams.begin(6, fleet.ports)
        await asyncio.to_thread(revoke, clients)
        async with asyncio.timeout(ENDED_S):
            for reply in await streams.gather():
                assert not reply.is_done
                assert reply.events[-1]["error"]["type"] == "api_error"

    asyncio.run(run())
    fleet.check()
    rows = fleet.ledger.rows()
    for sent in clients.sent:
        if sent.reply.status == 429:
            continue
        [row] = rows[sent.request.request_id]
        assert row.cost_nano == delivered_cost_nano("forte", sent.request.content, [BEGUN])


def test_gateway_cut_off_from_postgres_does_not_accept_a_revoked_key(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """A gateway that knew the key and did not hear of its revocation does not accept it afterwards."""
    clients, cut_off = Clients(fleet), fleet.gateways[0]

    async def run() -> None:
        assert (await clients.send_patiently(clients.new_request(), cut_off.port)).is_done
        cut_off.store.cut()
        await asyncio.to_thread(revoke, clients)
        assert (await clients.send(clients.new_request(), cut_off.port)).status == 429
        cut_off.store.restore()
        assert (await clients.send_patiently(clients.new_request(), cut_off.port)).status == 401

    asyncio.run(run())
    fleet.check()
    clients.check_charges()


def test_gateway_that_was_stopped_does_not_accept_a_revoked_key(fleet: Fleet, upstream: LoopbackUpstream) -> None:
    """A request that waited at a stopped gateway while its key was revoked is refused when the gateway goes on."""
    clients, stopped = Clients(fleet), fleet.gateways[1]

    async def run() -> None:
        assert (await clients.send_patiently(clients.new_request(), stopped.port)).is_done
        stopped.process.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(revoke, clients)
        waiting = [asyncio.create_task(clients.send(clients.new_request(), stopped.port)) for _ in range(5)]
        await asyncio.sleep(SENT_S)
        stopped.process.send_signal(signal.SIGCONT)
        assert {reply.status for reply in await asyncio.gather(*waiting)} <= {401, 429}

    try:
        asyncio.run(run())
    finally:
        stopped.process.send_signal(signal.SIGCONT)
    fleet.check()
    clients.check_charges()
