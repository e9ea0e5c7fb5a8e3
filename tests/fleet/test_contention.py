"""Many transactions at once on the same accounts, from all gateways and from commands: none ever deadlocks.

Postgres finds a deadlock after 50 ms, long before a lock wait ends, and counts it. $CADENZA_FLEET_TRANSACTIONS makes
the run longer: 100000 takes some minutes.
"""

import asyncio
import itertools
import os
import random
import sys
import time
from collections.abc import Iterator

import pytest

from cadenza.control.accounts import give_credit
from cadenza.store.address import open_store
from tests.fleet.cluster import Cluster
from tests.fleet.fleet import Fleet, FleetSpec, running_fleet
from tests.fleet.requests import Clients, check_charges
from tests.loopback import LoopbackUpstream
from tests.service import now_ms

TRANSACTIONS = int(os.environ.get("CADENZA_FLEET_TRANSACTIONS") or 2000)
AT_ONCE = 24
COUNTS = """
    SELECT xact_commit + xact_rollback, deadlocks FROM pg_stat_database WHERE datname = current_database()"""
LOOK_S = 0.25


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, fleet_upstream: LoopbackUpstream) -> Iterator[Fleet]:
    with running_fleet(cluster, FleetSpec(fleet_upstream.base_url)) as running:
        yield running


class Contention:
    """Clients of some accounts, and a command that gives them credit, until enough transactions have run."""

    def __init__(self, fleet: Fleet, accounts: int) -> None:
        self.clients = [Clients(fleet) for _ in range(accounts)]
        self.seconds = 0.0
        self._fleet = fleet
        self._is_over = asyncio.Event()
        self._before, _ = self.counts()

    def counts(self) -> tuple[int, int]:
        """The transactions and the deadlocks of this database."""
        [(transactions, deadlocks)] = self._fleet.ledger.query(COUNTS)
        return transactions, deadlocks

    @property
    def transactions(self) -> int:
        return self.counts()[0] - self._before

    async def run(self) -> None:
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as running:
            for number in range(AT_ONCE):
                running.create_task(self._ask(random.Random(number)))
            running.create_task(self._give())
            while await asyncio.to_thread(lambda: self.transactions) < TRANSACTIONS:  # noqa: ASYNC110 Postgres counts
                await asyncio.sleep(LOOK_S)
            self._is_over.set()
        self.seconds = time.monotonic() - began_s

    async def _ask(self, dice: random.Random) -> None:
        """Requests with an idempotency key are transactions of their own, those without share them."""
        for number in itertools.count():
            if self._is_over.is_set():
                return
            clients = dice.choice(self.clients)
            request = clients.new_request(stream=number % 4 == 0, once=number % 3 > 0)
            await clients.send(request, dice.choice(self._fleet.ports))

    async def _give(self) -> None:
        store = open_store(self._fleet.ledger.url)
        try:
            for clients in itertools.cycle(self.clients):
                if self._is_over.is_set():
                    return
                await give_credit(store, clients.email, 1, "for a test", now_ms())
                clients.credit_nano += 1
        finally:
            await store.close()


@pytest.mark.timeout(300 + TRANSACTIONS // 20)
@pytest.mark.parametrize("accounts", [1, 50])
def test_transactions_on_the_same_accounts_never_deadlock(
    fleet: Fleet, upstream: LoopbackUpstream, accounts: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Thousands of transactions on one account, and on fifty: no deadlock, and every request is served."""
    contention = Contention(fleet, accounts)
    asyncio.run(contention.run())
    transactions, (_, deadlocks) = contention.transactions, contention.counts()
    sent = [one for clients in contention.clients for one in clients.sent]
    with capsys.disabled():
        shown = f"requests={len(sent)} transactions={transactions} seconds={contention.seconds:.1f}"
        sys.stdout.write(f"\ncontention: accounts={accounts} {shown} deadlocks={deadlocks}\n")
    assert deadlocks == 0
    assert [one.reply.status for one in sent if not one.reply.is_done] == []
    fleet.check()
    check_charges(contention.clients)
