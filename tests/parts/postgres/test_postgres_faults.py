"""Postgres stalls, is restarted, or loses connections: refusals come soon, and the store recovers by itself."""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy import text

from cadenza.control.store.prepare import WriteCheck
from cadenza.observe import make_log
from cadenza.store.address import open_store
from cadenza.store.statements import Statement
from cadenza.store.store import Row, Store, StoreUnavailable, Transaction
from tests.link import Link
from tests.postgres import OWNER, Postgres, running_postgres
from tests.store.aside import aside
from tests.store.processes import announce
from tests.store.test_watch import wait_for

pytestmark = pytest.mark.slow(reason="waits for the time limits of a Postgres that hangs")

RECOVER_S = 100.0
WAIT_S = 3.0  # longer than the default, because the machine may be busy
LONG_WAIT_S = 8.0  # of a store that must answer; a bound, too
BOUND_S = 50.0  # far more than a refusal takes, far less than a wait without a bound
CALLERS = 20
READ = Statement(text("SELECT number FROM epochs WHERE name = 'classes'"))
CHANGE = Statement(text("UPDATE epochs SET number = number + 1 WHERE name = 'classes'"))


def change(tx: Transaction) -> int:
    return tx.change(CHANGE, {})


@pytest.fixture(scope="module")
def own_postgres(postgres: Postgres) -> Iterator[Postgres]:
    """A cluster that this module stops and freezes; `postgres` is there, so this one can be made."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def link(own_postgres: Postgres) -> Iterator[Link]:
    with Link(own_postgres.socket).running() as running:
        yield running


@pytest.fixture
def url(own_postgres: Postgres) -> Iterator[str]:
    with own_postgres.migrated_database() as made:
        yield made


@pytest.fixture
async def store(url: str, link: Link) -> AsyncIterator[Store]:
    """A store whose connections go through the link, several of them open."""
    async with opened_through(link, url, WAIT_S) as opened:
        yield opened


@pytest.fixture
async def patient(url: str, link: Link) -> AsyncIterator[Store]:
    """The same, for uses that must succeed."""
    async with opened_through(link, url, LONG_WAIT_S) as opened:
        yield opened


@contextlib.asynccontextmanager
async def opened_through(link: Link, url: str, wait_s: float) -> AsyncIterator[Store]:
    name = url.partition("@/")[2].partition("?")[0]
    opened = open_store(f"postgresql://{OWNER}@127.0.0.1:{link.port}/{name}", wait_s)
    await asyncio.gather(*(opened.row(READ, {}) for _ in range(CALLERS)), return_exceptions=True)
    yield opened
    link.resume()
    await opened.close()


async def check_refused_soon(store: Store) -> None:
    """Every way to use the store fails within a bound."""
    async with asyncio.timeout(BOUND_S):
        uses = [store.ping(), store.row(READ, {}), store.transact(change), store.transact(change, is_single=True)]
        errors = await asyncio.gather(*uses, *(store.row(READ, {}) for _ in range(CALLERS)), return_exceptions=True)
    assert {type(error) for error in errors} == {StoreUnavailable}


async def recover(store: Store) -> None:
    """Wait until both reads and transactions work."""
    async with asyncio.timeout(RECOVER_S):
        while True:
            with contextlib.suppress(StoreUnavailable):
                await store.row(READ, {})
                await store.transact(change)
                return
            await asyncio.sleep(0.05)


async def answer(store: Store, statement: Statement) -> list[Row]:
    """The first answer: on a busy machine it may not come in time."""
    async with asyncio.timeout(RECOVER_S):
        while True:
            with contextlib.suppress(StoreUnavailable):
                return await store.rows(statement, {})


async def test_a_stalled_network_refuses_soon_and_recovers(store: Store, link: Link) -> None:
    """While nothing is forwarded and nothing closed, every use is refused within a bound; then all works again."""
    link.stall()
    await check_refused_soon(store)
    await check_refused_soon(store)
    link.resume()
    await recover(store)


async def test_a_frozen_server_refuses_soon_and_recovers(store: Store, own_postgres: Postgres) -> None:
    """While all processes of Postgres are stopped, uses and the readiness check fail in a bound; then all works."""
    check = WriteCheck(store, make_log(io.StringIO()))
    with own_postgres.frozen():
        await check_refused_soon(store)
        async with asyncio.timeout(BOUND_S):
            assert "Check that Postgres runs" in str(await check.failure())
    await recover(store)


async def test_half_open_connections_are_replaced(patient: Store, link: Link) -> None:
    """When all connections are lost silently, those that use them fail once, and then all callers are served."""
    link.strand()
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            await patient.row(READ, {})
        assert len(await asyncio.gather(*(patient.row(READ, {}) for _ in range(CALLERS)))) == CALLERS


async def test_a_cut_network_refuses_at_once_and_recovers(store: Store, link: Link) -> None:
    """A network that refuses connections is a StoreUnavailable; when it is there again all works."""
    link.cut()
    await check_refused_soon(store)
    link.restore()
    await recover(store)


async def test_a_restarted_server_needs_no_restart_of_ours(store: Store, own_postgres: Postgres) -> None:
    """While Postgres is down uses are refused; after its start the same store works."""
    await asyncio.to_thread(own_postgres.stop)
    try:
        await check_refused_soon(store)
    finally:
        await asyncio.to_thread(own_postgres.start)
    await recover(store)


async def test_an_answer_that_is_lost_is_not_taken_for_another(store: Store, link: Link) -> None:
    """Answers that arrive after their callers gave up reach nobody else."""
    numbers = [Statement(text(f"SELECT {number}")) for number in range(CALLERS)]
    link.stall()
    await asyncio.gather(*(store.row(number, {}) for number in numbers), return_exceptions=True)
    link.resume()
    await recover(store)
    found = await asyncio.gather(*(answer(store, number) for number in reversed(numbers)))
    assert found == [[(number,)] for number in reversed(range(CALLERS))]


@pytest.mark.parametrize("loses", [Link.strand, Link.cut])
async def test_a_watcher_survives_its_connection(patient: Store, link: Link, url: str, loses: object) -> None:
    """A listening connection that is lost, silently or not, is made again; the watcher is woken and hears the next."""
    woken = asyncio.Event()
    async with patient.watch(woken.set):
        assert callable(loses)
        loses(link)
        link.restore()
        await wait_for(woken)
        direct = open_store(url, BOUND_S)
        await direct.transact(announce)
        await direct.close()
        await wait_for(woken)


async def test_a_lost_machine_leaves_no_lock(patient: Store, link: Link, url: str) -> None:
    """A transaction whose machine is gone is ended by Postgres, and what it locked can be changed by others."""
    taken = asyncio.Event()
    loop = asyncio.get_running_loop()

    def lock_and_vanish(tx: Transaction) -> None:
        tx.change(CHANGE, {})
        link.stall()
        loop.call_soon(taken.set)
        tx.change(CHANGE, {})

    working = asyncio.create_task(patient.transact(lock_and_vanish))
    await taken.wait()
    async with aside(url) as other, asyncio.timeout(RECOVER_S):
        await other.execute("UPDATE epochs SET number = number + 1 WHERE name = 'classes'")
    with pytest.raises(StoreUnavailable):
        await working
