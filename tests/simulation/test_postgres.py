"""The simulated server: what became of a transaction, and what its caller is told of that."""

from collections.abc import Callable
from random import Random

import pytest

from cadenza.ledger.credit import LOCK
from cadenza.store.store import StoreBusy, StoreUnavailable, StoreUncertain, Transaction
from cadenza.store.tables import accounts
from cadenza.store.tables.accounts import Account
from tests.simulation.database import Database
from tests.simulation.network import Link
from tests.simulation.postgres import PostgresServer, SimulatedPostgresStore
from tests.simulation.scheduler import Scheduler, VirtualLoop


class Bench:
    """A store on a server, in virtual time. `add` writes an account that `names` then has, if that was committed."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(Random(1))
        self.server = PostgresServer(self.scheduler, Database(), Random(2))
        self.loop = VirtualLoop(self.scheduler, "client")  # type: ignore[abstract]
        self.link = Link(self.scheduler, self.loop, Random(3))
        self.store = self.loop.inside(lambda: SimulatedPostgresStore(self.server, self.link))
        assert self.add("first") is None

    def add(self, name: str, meanwhile: Callable[[], object] = lambda: None) -> BaseException | None:
        """Return the error, if any. `meanwhile` happens after the commit and before its answer."""

        def work(tx: Transaction) -> None:
            tx.rows(LOCK, {"account": "first"})
            accounts.add(tx, Account(name, f"{name}@example.org", "forte", 0, 0, 0), "hash")
            self.scheduler.after(0.0, meanwhile)

        added = self.loop.start(self.store.transact(work))
        self.scheduler.run(self.scheduler.now_s + 10)
        return added.exception()

    @property
    def names(self) -> list[str]:
        return [row["id"] for row in self.server.database.rows("accounts")]


def test_a_commit_whose_answer_is_lost_is_uncertain_and_stays() -> None:
    """Also where the client is killed; a server that fails over has what was committed, but for a lost tail."""
    bench = Bench()
    assert isinstance(bench.add("second", bench.link.break_all), StoreUncertain)
    assert bench.names == ["first", "second"]
    state = bench.server.database.copy()
    assert isinstance(bench.add("third", bench.server.go_down), StoreUncertain)
    assert bench.names == ["first", "second", "third"]
    bench.server.database.restore(state)
    assert bench.names == ["first", "second"]


@pytest.mark.parametrize("trips", [1, 2, 3])
def test_a_connection_that_breaks_before_the_commit_changes_nothing(trips: int) -> None:
    """The caller knows that, unless its COMMIT was on the way."""
    bench = Bench()
    bench.link.trap = bench.link.sent + trips, bench.link.break_all
    bench.link.slowness = 0.01
    error = bench.add("second")
    assert (type(error), bench.names) == (StoreUncertain if trips == 3 else StoreUnavailable, ["first"])


def test_a_full_disk_and_a_lock_refuse_a_transaction() -> None:
    """It has changed nothing, and its caller knows that. A lock that ends in time only delays it."""
    bench = Bench()
    bench.server.is_full = True
    assert type(bench.add("second")) is StoreUnavailable
    bench.server.is_full = False
    bench.server.lock("first")
    assert type(bench.add("second")) is StoreBusy
    assert bench.names == ["first"]
    bench.scheduler.after(0.5, bench.server.unlock, "first")
    assert bench.add("second") is None
