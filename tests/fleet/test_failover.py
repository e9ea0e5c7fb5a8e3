"""Failover to a promoted replica on another port, under load.

With a synchronous replica nothing is lost. With an asynchronous one, what the replica had not received is lost, and
nothing else: no credit stays held, and the gateways go on by themselves.
"""

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from tests.fleet.cluster import Cluster, running_cluster, stopping
from tests.fleet.fleet import LOOPBACK, Fleet, FleetSpec
from tests.fleet.requests import Clients
from tests.fleet.streams import RunningStreams
from tests.link import Link
from tests.loopback import LoopbackUpstream
from tests.postgres import postgres_folder
from tests.service import wait_until

LOAD_S = 1.5
SYNCHRONOUS = "ALTER SYSTEM SET synchronous_standby_names = 'replica'"
RELOAD = "SELECT pg_reload_conf()"
REPLICATION = "SELECT sync_state FROM pg_stat_replication"
pytestmark = pytest.mark.slow(reason="a primary is lost under load")


class Pair:
    """A primary and its replica, joined by a link, and a fleet on the primary."""

    def __init__(self, primary: Cluster, replica: Cluster, joint: Link, fleet: Fleet) -> None:
        self.primary = primary
        self.replica = replica
        self.joint = joint
        self.fleet = fleet

    def make_synchronous(self) -> None:
        self.primary.execute(SYNCHRONOUS)
        self.primary.execute(RELOAD)
        wait_until(lambda: self.fleet.ledger.query(REPLICATION) == [("sync",)], "synchronous replication")

    def wait_until_received(self) -> None:
        caught_up = "SELECT COALESCE(bool_and(replay_lsn = pg_current_wal_lsn()), false) FROM pg_stat_replication"
        wait_until(lambda: self.fleet.ledger.query(caught_up) == [(True,)], "the replica having received everything")

    def fail_over(self) -> None:
        """The primary is lost and the replica promoted. The gateways find it: the address has both hosts."""
        self.primary.kill()
        self.replica.promote()
        self.fleet.ledger.move(self.replica.url(self.fleet.database))


@pytest.fixture
def pair(fleet_upstream: LoopbackUpstream) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(running_cluster())
        joint = stack.enter_context(Link((LOOPBACK, primary.port)).running())
        replica = primary.replica(stack.enter_context(postgres_folder()), joint.port)
        stack.enter_context(stopping(replica))
        spec = FleetSpec(fleet_upstream.base_url, replica_port=replica.port)
        fleet = stack.enter_context(Fleet(primary, spec))
        yield Pair(primary, replica, joint, fleet)


async def test_failover_to_a_synchronous_replica_loses_nothing(pair: Pair, upstream: LoopbackUpstream) -> None:
    """Every reply that was whole before, during or after the failover is charged in the promoted replica."""
    clients = Clients(pair.fleet)
    pair.make_synchronous()
    streams = RunningStreams(clients, upstream)
    await streams.begin(6, pair.fleet.ports)
    async with clients.load():
        await asyncio.sleep(LOAD_S)
        await asyncio.to_thread(pair.fail_over)
        streams.release()
        await clients.check_recovery()
        await asyncio.sleep(LOAD_S)
        await clients.wait_for_replies(100)
    await streams.end()
    pair.fleet.check()
    clients.check_charges()


async def test_failover_to_an_asynchronous_replica_loses_only_what_it_had_not_received(
    pair: Pair, upstream: LoopbackUpstream
) -> None:
    """Charges before the replica fell behind and after the failover are kept, and no credit stays held."""
    clients, lost, after = Clients(pair.fleet), Clients(pair.fleet), Clients(pair.fleet)
    await clients.send_all([clients.new_request(stream=number % 2 == 0) for number in range(60)])
    streams = RunningStreams(after, upstream)
    await streams.begin(6, pair.fleet.ports)
    await asyncio.to_thread(pair.wait_until_received)
    pair.joint.cut()
    async with lost.load(6):
        await asyncio.sleep(LOAD_S)
    await asyncio.to_thread(pair.fail_over)
    await after.check_recovery()
    await streams.end()
    await after.send_all([after.new_request() for _ in range(30)], pair.fleet.ports)
    pair.fleet.check()
    for kept in (clients, after):
        kept.check_charges()
    assert pair.fleet.ledger.balance_nano(lost.email) == lost.credit_nano, "what was lost is more than the charges"
