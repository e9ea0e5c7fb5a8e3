"""The Postgres store: its statements, its retries, its refusals and its addresses."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import select, text

from cadenza.cli.doctor.installation import check_clock
from cadenza.parts.postgres.connection import PostgresBounds, first_of
from cadenza.parts.postgres.store import PostgresStore
from cadenza.store.address import open_store
from cadenza.store.migrate import migrate
from cadenza.store.schema import accounts
from cadenza.store.statements import Statement
from cadenza.store.store import Store, StoreBusy, StoreRefused, StoreUnavailable, Transaction
from tests.link import Link
from tests.postgres import OWNER, Postgres
from tests.store.aside import aside, transaction
from tests.store.moves import come_to_wait
from tests.store.rows import add_account

LONG_S = 60.0
BOUNDED_S = 30.0  # far more than a bounded wait takes on a busy machine, and less than one without a bound
SECRET = "a-value-that-must-not-show"
IDS = Statement(select(accounts.c.id).order_by(accounts.c.id))
LOCK = Statement(text("SELECT id FROM accounts WHERE id = :id FOR UPDATE"))
RENAME = Statement(text("UPDATE accounts SET preferred_class = :name WHERE id = :id"))
NAME_OF = Statement(text("SELECT preferred_class FROM accounts WHERE id = :id"))
GATE = Statement(text("SELECT pg_advisory_xact_lock(7)"))
PATIENT = PostgresBounds().with_waits_of(LONG_S)
HASTY = msgspec.structs.replace(PATIENT, lock_s=PostgresBounds().lock_s)  # only for a lock
SLEEP = Statement(text("SELECT pg_sleep(60)"))
COUNT_SESSIONS = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.fixture
def url(postgres: Postgres) -> Iterator[str]:
    with postgres.migrated_database() as made:
        yield made


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    async with opened(PostgresStore(url, PATIENT)) as made:
        await add_account(made, "acct_a")
        await add_account(made, "acct_b")
        yield made


@contextlib.asynccontextmanager
async def opened(store: PostgresStore) -> AsyncIterator[PostgresStore]:
    try:
        yield store
    finally:
        await store.close()


def through(link: Link, url: str, login: str = OWNER) -> str:
    """The address of the same database, through a link."""
    return f"postgresql://{login}@127.0.0.1:{link.port}/{name_of(url)}"


def name_of(url: str) -> str:
    return url.partition("@/")[2].partition("?")[0]


def renaming(account: str, name: str) -> dict[str, str]:
    return {"id": account, "name": name}


async def test_work_of_a_single_statement_is_durable(store: PostgresStore, url: str) -> None:
    """`is_single` returns the result of the statement, and another connection sees its change."""
    assert await store.transact(lambda tx: tx.change(RENAME, renaming("acct_a", "mezzo")), is_single=True) == 1
    async with aside(url) as other:
        assert await other.rows("SELECT preferred_class FROM accounts WHERE id = 'acct_a'") == [("mezzo",)]


async def test_a_second_statement_without_a_transaction_is_a_bug(store: PostgresStore) -> None:
    """`is_single` work that runs two statements fails loudly."""
    with pytest.raises(AssertionError, match="more than one statement"):
        await store.transact(lambda tx: [tx.row(IDS, {}), tx.row(IDS, {})], is_single=True)


async def test_changes_of_many_rows_are_one_round_trip(store: PostgresStore, postgres: Postgres, url: str) -> None:
    """Through a slow network, a hundred changes take far less time than a hundred round trips."""
    loop = asyncio.get_running_loop()
    with Link(postgres.socket).running() as link:
        async with opened(PostgresStore(through(link, url), PATIENT)) as far:
            values = [renaming("acct_a", "mezzo")] * 100
            await far.transact(lambda tx: tx.change_each(RENAME, values[:1]), is_single=True)
            link.delay_s = 0.2
            began_s = loop.time()
            await far.transact(lambda tx: tx.change_each(RENAME, values), is_single=True)
            assert loop.time() - began_s < 100 * link.delay_s  # half of what a hundred round trips take


async def test_a_deadlock_is_resolved(store: PostgresStore, url: str) -> None:
    """Work that Postgres chose to end a deadlock runs once more."""
    async with aside(url) as other:
        await other.execute(f"ALTER DATABASE {name_of(url)} SET deadlock_timeout = '10ms'")
    runs = 0

    def lock_both(tx: Transaction) -> None:
        nonlocal runs
        runs += 1
        first, second = ("acct_a", "acct_b") if runs == 1 else ("acct_b", "acct_a")  # no deadlock with the same other
        tx.row(LOCK, {"id": first})
        tx.row(GATE, {})
        tx.row(LOCK, {"id": second})

    async with opened(PostgresStore(url, PATIENT)) as patient, aside(url) as gate, transaction(url) as other:
        await gate.execute("SELECT pg_advisory_lock(7)")
        await other.execute("SET deadlock_timeout = '60s'")
        await other.rows("SELECT id FROM accounts WHERE id = 'acct_b' FOR UPDATE")
        working = asyncio.create_task(patient.transact(lock_both))
        assert await come_to_wait(store, 1)
        locking = asyncio.create_task(other.rows("SELECT id FROM accounts WHERE id = 'acct_a' FOR UPDATE"))
        assert await come_to_wait(store, 2)
        await gate.execute("SELECT pg_advisory_unlock(7)")
        await locking
        await other.execute("COMMIT")
        await working
    assert runs == 2


async def test_a_lock_of_another_session_is_busy(store: PostgresStore, url: str) -> None:
    """A row that another session keeps locked is a StoreBusy; other rows can be changed meanwhile."""
    async with transaction(url) as other:
        await other.rows("SELECT id FROM accounts WHERE id = 'acct_a' FOR UPDATE")
        async with opened(PostgresStore(url, HASTY)) as hasty:
            with pytest.raises(StoreBusy, match="Another process holds a lock"):
                async with asyncio.timeout(BOUNDED_S):
                    await hasty.transact(lambda tx: tx.change(RENAME, renaming("acct_a", "mezzo")))
        assert await store.transact(lambda tx: tx.change(RENAME, renaming("acct_b", "mezzo"))) == 1


async def test_a_session_left_in_a_transaction_is_ended(store: PostgresStore, url: str) -> None:
    """A process that was stopped inside a transaction loses its locks: Postgres ends its session."""
    async with opened(PostgresStore(url, msgspec.structs.replace(PATIENT, idle_in_transaction_s=45.0))) as stopped:
        setting = Statement(text("SHOW idle_in_transaction_session_timeout"))
        assert await stopped.transact(lambda tx: tx.row(setting, {})) == ("45s",)
    assert await store.transact(lambda tx: tx.row(setting, {})) == ("5s",)


async def test_a_changed_column_type_is_no_error(store: PostgresStore, url: str) -> None:
    """After a migration changed a column's type, reads and transactions on open connections go on."""

    def read(tx: Transaction) -> object:
        return tx.row(NAME_OF, {"id": "acct_a"})

    assert [await store.row(NAME_OF, {"id": "acct_a"}), await store.transact(read)] == [("forte",)] * 2
    await asyncio.gather(*(store.transact(read) for _ in range(8)))
    async with aside(url) as other:
        for kind in ("VARCHAR(300)", "TEXT"):
            await other.execute(f"ALTER TABLE accounts ALTER COLUMN preferred_class TYPE {kind}")
            found = await asyncio.gather(*(store.transact(read) for _ in range(8)))
            assert found == [("forte",)] * 8
            assert await store.row(NAME_OF, {"id": "acct_a"}) == ("forte",)
            assert await store.rows(NAME_OF, {"id": "acct_a"}) == [("forte",)]


async def test_a_cancelled_statement_leaves_the_pool_sound(store: PostgresStore, url: str) -> None:
    """When callers are cancelled in the middle of a statement, later callers get their own answers."""
    waiting = [asyncio.create_task(store.rows(SLEEP, {})) for _ in range(8)]
    async with aside(url) as other, asyncio.timeout(LONG_S):
        while await other.rows(f"{COUNT_SESSIONS} AND query LIKE '%pg_sleep%'") != [(8,)]:
            pass
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert await asyncio.gather(*(store.rows(IDS, {}) for _ in range(20))) == [[("acct_a",), ("acct_b",)]] * 20
        while await other.rows(f"{COUNT_SESSIONS} AND query LIKE '%pg_sleep%'") != [(0,)]:
            pass


async def test_a_value_that_does_not_fit_is_refused(store: PostgresStore) -> None:
    """A value of the wrong type or with a NUL is a StoreRefused that does not show it."""
    for value in (f"{SECRET}\0", 10**30):
        with pytest.raises(StoreRefused, match="refused a value") as caught:
            await store.row(NAME_OF, {"id": value})
        assert SECRET not in str(caught.value)


async def test_a_server_out_of_connections_says_so(store: PostgresStore, postgres: Postgres, url: str) -> None:
    """Too many connections are a StoreUnavailable with advice; once there is room the store works."""
    async with aside(url) as other:
        await other.execute(f"CREATE ROLE {name_of(url)} LOGIN CONNECTION LIMIT 1")
        await other.execute(f"GRANT SELECT ON accounts TO {name_of(url)}")
        limited = url.replace(f"//{OWNER}@", f"//{name_of(url)}@")
        async with opened(PostgresStore(limited, PATIENT)) as one, opened(PostgresStore(limited, PATIENT)) as two:
            await one.ping()
            with pytest.raises(StoreUnavailable, match=r"too many connections.*Raise max_connections.*up to 10"):
                await two.ping()
            with pytest.raises(StoreUnavailable, match=r"permission denied.*Give its user the right"):
                await one.transact(lambda tx: tx.change(RENAME, renaming("acct_a", "mezzo")))
            await one.close()
            async with asyncio.timeout(LONG_S):
                while not await answers(two):
                    pass
        await other.execute(f"DROP OWNED BY {name_of(url)}")
        await other.execute(f"DROP ROLE {name_of(url)}")


async def answers(store: Store) -> bool:
    try:
        await store.ping()
    except StoreUnavailable:
        return False
    return True


async def test_connections_are_opened_on_need_and_are_few(store: PostgresStore, url: str) -> None:
    """One caller needs one connection; many at once share eight."""
    async with opened(PostgresStore(url, PATIENT)) as other, aside(url) as counting:
        await store.close()
        for _ in range(5):
            await other.ping()
        async with asyncio.timeout(LONG_S):
            while await counting.rows(COUNT_SESSIONS) != [(1,)]:  # until Postgres has ended those of the other store
                pass
        await asyncio.gather(*(other.ping() for _ in range(50)))
        [(count,)] = await counting.rows(COUNT_SESSIONS)
        assert 1 <= count <= 8


async def test_a_server_that_becomes_read_only_is_left(store: PostgresStore, url: str) -> None:
    """While the database takes no writes they are a StoreUnavailable with advice; afterwards they work again."""

    def rename(tx: Transaction) -> int:
        return tx.change(RENAME, renaming("acct_a", "mezzo"))

    async with aside(url) as other:
        await other.execute(f"ALTER DATABASE {name_of(url)} SET default_transaction_read_only = on")
        await store.close()
        with pytest.raises(StoreUnavailable, match=r"read-only.*Connect to the primary"):
            await store.transact(rename)
        assert await store.rows(IDS, {})
        await other.execute("SET default_transaction_read_only = off")
        await other.execute(f"ALTER DATABASE {name_of(url)} RESET default_transaction_read_only")
    with contextlib.suppress(StoreUnavailable):  # on the connection of the read, which Postgres still holds to be so
        await store.transact(rename)
    assert await store.transact(rename) == 1


class Opened:
    """A connection."""

    is_open = True

    def terminate(self) -> None:
        self.is_open = False


async def test_of_hosts_that_answer_at_the_same_moment_one_keeps_a_session() -> None:
    """One connection is used, and any other that was opened is closed."""
    loop, connections = asyncio.get_running_loop(), [Opened() for _ in range(3)]
    tries = [loop.create_future() for _ in connections]
    for trial, connection in zip(tries, connections, strict=True):
        trial.set_result(connection)
    chosen = await first_of(tries)
    await asyncio.sleep(0)  # the others are closed by callbacks
    assert [one for one in connections if one.is_open] == [chosen]


async def test_the_host_that_takes_writes_is_used(postgres: Postgres) -> None:
    """Of several hosts the writable one is used, also when it changes and when another does not answer."""
    with postgres.database() as one, postgres.database() as two, contextlib.ExitStack() as stack:
        links = [stack.enter_context(Link(postgres.socket).running()) for _ in range(3)]
        links[0].stall()
        hosts = ",".join(f"127.0.0.1:{link.port}" for link in links)
        address = f"postgresql://{OWNER}:{SECRET}@{hosts}/{name_of(one)}"
        store = PostgresStore(address, PATIENT)
        await migrate(store)
        assert await store.transact(lambda tx: tx.rows(IDS, {})) == []
        links[1].cut()
        with contextlib.suppress(StoreUnavailable):
            await store.ping()
        assert await store.transact(lambda tx: tx.rows(IDS, {})) == []
        async with aside(two) as other:
            await other.execute(f"ALTER DATABASE {name_of(one)} SET default_transaction_read_only = on")
        await store.close()
        async with opened(PostgresStore(address, PostgresBounds(first_connect_s=1.0))) as hasty:
            with pytest.raises(StoreUnavailable) as caught:
                await hasty.ping()
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("query", "problem"), [("", None), ("sslmode=disable", None), ("sslmode=prefer", None), ("sslmode=require", "SSL")]
)
async def test_sslmode_is_obeyed(postgres: Postgres, url: str, query: str, problem: str | None) -> None:
    """A server without TLS is used where the address allows it, and refused where it does not."""
    with Link(postgres.socket).running() as link:
        async with opened(PostgresStore(f"{through(link, url)}?{query}", PATIENT)) as store:
            if problem is None:
                await store.ping()
            else:
                with pytest.raises(StoreUnavailable, match=problem):
                    await store.ping()


@pytest.mark.parametrize("login", [f"user:{SECRET}/more", f"user:{SECRET}@host:port"])
async def test_a_wrong_address_does_not_show_the_password(login: str) -> None:
    """An address that cannot be understood is a StoreUnavailable without its password."""
    store = open_store(f"postgresql://{login}@host/db")
    with pytest.raises(StoreUnavailable, match="cannot be used") as caught:
        await store.ping()
    assert SECRET not in str(caught.value)


async def test_a_name_that_does_not_resolve_is_unavailable(tmp_path: Path) -> None:
    """A host that does not exist is a StoreUnavailable."""
    store = open_store("postgresql://user@no-such-host.invalid/db")
    with pytest.raises(StoreUnavailable, match="Check that Postgres runs"):
        await store.ping()


@pytest.mark.parametrize(("ahead_s", "state"), [(0.0, "ok"), (0.5, "ok"), (7.5, "warning"), (-7.5, "warning")])
async def test_doctor_compares_the_clock_with_that_of_the_server(url: str, ahead_s: float, state: str) -> None:
    """It says how far they differ, and warns from one second on, in either direction."""
    (check,) = await check_clock(url, lambda: time.time() + ahead_s)
    assert (check.check, check.state) == ("clock", state)
    assert ("ahead of Postgres" in check.found) or ahead_s <= 0
    assert ("behind Postgres" in check.found) or ahead_s >= 0
    assert float(check.found.split()[3]) == pytest.approx(abs(ahead_s), abs=0.3)
    assert bool(check.todo) is (state == "warning")
