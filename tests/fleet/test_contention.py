"""Many transactions at once on the same accounts, from several processes and from commands: none ever deadlocks.

Postgres finds a deadlock after 50 ms, long before a lock wait ends, and counts it. $CADENZA_FLEET_TRANSACTIONS makes
the run longer.
"""

import asyncio
import itertools
import os
import sys
import time
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from cadenza.control.keys import KeyOrder, create_key
from cadenza.control.money.credit import give_credit
from cadenza.store.address import open_store
from cadenza.store.store import Store
from tests.environment import environment
from tests.fleet.cluster import Cluster
from tests.fleet.fleet import NO_STATE, FleetSpec, write_config
from tests.fleet.ledger import FleetLedger
from tests.service import now_ms

TRANSACTIONS = int(os.environ.get("CADENZA_FLEET_TRANSACTIONS") or 600)
PROCESSES = 3
CREDIT_NANO = 10**13
ROOT = Path(__file__).parents[2]
COUNTS = """
    SELECT xact_commit + xact_rollback, deadlocks FROM pg_stat_database WHERE datname = current_database()"""
KEYS = "SELECT a.id, k.id FROM accounts a JOIN keys k ON k.account_id = a.id"
pytestmark = pytest.mark.slow(reason="hundreds of transactions at once")


@pytest.fixture
def ledger(cluster: Cluster, tmp_path: Path) -> FleetLedger:
    url = cluster.url(cluster.create_database())
    return FleetLedger(url, write_config(tmp_path / "auditor", FleetSpec("http://127.0.0.1:1/v1"), url, NO_STATE))


class Contention:
    """Processes that move the money of the same accounts, and a command that gives them credit meanwhile."""

    def __init__(self, ledger: FleetLedger, accounts: int) -> None:
        self.emails = [ledger.create_account(0) for _ in range(accounts)]
        self.given_nano = self.charged_nano = self.busy = 0
        self._ledger = ledger
        ledger.control(self._fund)

    async def run(self) -> None:
        is_over = asyncio.Event()
        async with asyncio.TaskGroup() as running:
            running.create_task(self._give(is_over))
            for busy, charged_nano in await asyncio.gather(*(self._move(f"p{one}") for one in range(PROCESSES))):
                self.busy += busy
                self.charged_nano += charged_nano
            is_over.set()

    async def _fund(self, store: Store) -> None:
        for email in self.emails:
            await give_credit(store, email, CREDIT_NANO, "for a test", now_ms())
            await create_key(store, email, KeyOrder(), now_ms())

    async def _move(self, name: str) -> tuple[int, int]:
        pairs = [":".join(pair) for pair in self._ledger.query(KEYS)]
        count = str(TRANSACTIONS // PROCESSES // 2)  # a hold and a charge each
        command = (sys.executable, "-m", "tests.fleet.movers", self._ledger.url, name, count, *pairs)
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment(), stdout=PIPE)
        said, _ = await process.communicate()
        assert process.returncode == 0
        busy, charged_nano = said.split()
        return int(busy), int(charged_nano)

    async def _give(self, is_over: asyncio.Event) -> None:
        store = open_store(self._ledger.url)
        try:
            for email in itertools.cycle(self.emails):
                if is_over.is_set():
                    return
                await give_credit(store, email, 1, "for a test", now_ms())
                self.given_nano += 1
        finally:
            await store.close()


@pytest.mark.timeout(300 + TRANSACTIONS // 20)
@pytest.mark.parametrize("accounts", [1, 50])
def test_transactions_on_the_same_accounts_never_deadlock(
    ledger: FleetLedger, accounts: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hundreds of holds and charges on one account, and on fifty: no deadlock, and every charge is in the balances."""
    contention, began_s = Contention(ledger, accounts), time.monotonic()
    asyncio.run(contention.run())
    seconds = time.monotonic() - began_s
    [(transactions, deadlocks)] = ledger.query(COUNTS)
    with capsys.disabled():
        shown = f"accounts={accounts} moves={TRANSACTIONS} transactions={transactions} busy={contention.busy}"
        sys.stdout.write(f"\ncontention: {shown} grants={contention.given_nano} seconds={seconds:.1f} {deadlocks=}\n")
    assert deadlocks == 0
    ledger.check()
    left_nano = sum(ledger.balances_nano()[email] for email in contention.emails)
    assert left_nano == accounts * CREDIT_NANO + contention.given_nano - contention.charged_nano
