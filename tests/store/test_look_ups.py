"""Look-ups of keys, on both databases: they find the newest state, and on Postgres those that wait share a query."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator

import pytest

from cadenza.fleet.changes import make_change
from cadenza.fleet.key_cache import QUERIES_AT_ONCE, KeyCache
from cadenza.fleet.presence import Presence
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.store import Store, StoreUnavailable
from cadenza.store.tables import keys
from tests.postgres import Postgres
from tests.store.fleet import CountingPostgres
from tests.store.moves import PATIENCE_S
from tests.store.rows import NOW_MS, add_account, add_key

UNKNOWN = [b"%032d" % number for number in range(2000)]
SHORT_S = 0.05


@pytest.fixture
async def watched(postgres: Postgres) -> AsyncIterator[CountingPostgres]:
    with postgres.migrated_database() as url:
        store = CountingPostgres(url)
        yield store
        await store.close()


async def add_first_key(store: Store) -> bytes:
    await add_account(store)
    return await add_key(store)


async def kept(key_cache: KeyCache, digest: bytes) -> keys.FoundKey | None:
    """As it is found for the second time: the first opens the store."""
    await key_cache.find(digest)
    return await key_cache.find(digest)


async def test_keys_are_found_among_unknown_ones(store: Store) -> None:
    """Of thousands of look-ups at once, those of stored keys find them, with the balance of the account."""
    await add_account(store)
    digests = [await add_key(store, f"key_{number}") for number in range(3)]
    key_cache = KeyCache(store, Presence(store), PATIENCE_S)
    found = await asyncio.gather(*(key_cache.find(digest) for digest in [*UNKNOWN, *digests]))
    assert not any(found[: len(UNKNOWN)])
    callers = [key.principal for key in found if key]
    assert [(one.key_id, one.balance_nano) for one in callers] == [("key_0", 0), ("key_1", 0), ("key_2", 0)]
    assert found[-1] == await keys.look_up(store, digests[-1])


async def test_a_request_that_arrives_after_a_revocation_is_refused(sqlite_store: SqliteStore) -> None:
    """A cached key serves what arrived before it was known to be unchanged, and nothing that arrives after a change."""
    digest = await add_first_key(sqlite_store)
    key_cache, before_s = KeyCache(sqlite_store, Presence(sqlite_store)), time.perf_counter()
    found = await kept(key_cache, digest)
    await make_change(sqlite_store, lambda tx: keys.revoke(tx, "key_a", NOW_MS))
    assert key_cache.find_now(digest, before_s) is found is not None
    assert key_cache.find_now(digest, time.perf_counter()) is None
    again = await key_cache.find(digest)
    assert (again and again.revoked_at) == NOW_MS
    assert key_cache.find_now(digest, before_s) is None


async def test_a_commit_that_changes_no_key_leaves_cached_keys(sqlite_store: SqliteStore) -> None:
    """Charges of another process, and large writes of this one, do not make every key be read again."""
    digest = await add_first_key(sqlite_store)
    key_cache = KeyCache(sqlite_store, Presence(sqlite_store))
    found = await kept(key_cache, digest)
    other = SqliteStore(sqlite_store.path)
    await keys.touch(other, {"key_a": 1})
    await other.close()
    assert key_cache.find_now(digest, time.perf_counter()) is None
    assert await key_cache.find(digest) is found is not None
    await sqlite_store.transact(lambda tx: tx.change(keys.TOUCH, {"key": "key_a", "used": 2}))
    assert await key_cache.find(digest) is found
    assert key_cache.find_now(digest, time.perf_counter()) is found


async def test_a_revocation_between_our_commit_and_its_end_is_seen(sqlite_store: SqliteStore) -> None:
    """A charge of ours leaves a cached key alone; a revocation by another process in the same instant does not."""
    digest = await add_first_key(sqlite_store)
    key_cache = KeyCache(sqlite_store, Presence(sqlite_store))
    found = await kept(key_cache, digest)
    await keys.touch(sqlite_store, {"key_a": 1})
    assert key_cache.find_now(digest, time.perf_counter()) is found is not None
    with contextlib.closing(sqlite3.connect(sqlite_store.path, timeout=PATIENCE_S, isolation_level=None)) as other:
        charging = asyncio.create_task(keys.touch(sqlite_store, {"key_a": 2}))
        await asyncio.sleep(0)
        other.execute("BEGIN IMMEDIATE")  # waits for our commit; the event loop has not heard of it yet
        other.execute("UPDATE keys SET revoked_at = 1")
        other.execute("UPDATE epochs SET number = number + 1 WHERE name = 'changes'")
        other.execute("COMMIT")
        assert other.execute("SELECT last_used_at FROM keys").fetchone() == (2,)
        assert key_cache.find_now(digest, time.perf_counter()) is None
        during = await key_cache.find(digest)
        await charging
    assert (during and during.revoked_at) == 1
    assert key_cache.find_now(digest, time.perf_counter()) is None


async def test_a_key_whose_account_could_not_pay_is_read_again(store: Store) -> None:
    """So its balance is not from before the charges that used it up."""
    digest = await add_first_key(store)
    key_cache = KeyCache(store, Presence(store))
    await key_cache.find(digest)
    await key_cache.find(digest)
    key_cache.forget(digest)
    assert key_cache.find_now(digest) is None


async def test_look_ups_at_the_same_time_share_a_query(watched: CountingPostgres) -> None:
    """Thousands of look-ups in the same instant are one query; look-ups one after the other are one each."""
    key_cache = KeyCache(watched, Presence(watched), PATIENCE_S)
    assert not any(await asyncio.gather(*(key_cache.find(digest) for digest in UNKNOWN)))
    assert watched.queries == 1
    assert not any([await key_cache.find(digest) for digest in UNKNOWN[:5]])
    assert watched.queries == 6


async def test_look_ups_that_wait_share_the_next_query(watched: CountingPostgres) -> None:
    """While as many queries run as may, everything that is asked for meanwhile is one more."""
    watched.may_answer.clear()
    key_cache, finding = KeyCache(watched, Presence(watched), PATIENCE_S), list[asyncio.Task[keys.FoundKey | None]]()
    for number in range(QUERIES_AT_ONCE):
        watched.has_read.clear()
        finding.append(asyncio.create_task(key_cache.find(UNKNOWN[number])))
        await watched.has_read.wait()
    finding += [asyncio.create_task(key_cache.find(digest)) for digest in UNKNOWN]
    await asyncio.sleep(0)
    watched.may_answer.set()
    assert not any(await asyncio.gather(*finding))
    assert watched.queries == QUERIES_AT_ONCE + 1


async def test_a_look_up_never_joins_a_query_that_has_read(watched: CountingPostgres) -> None:
    """A key that is revoked while a query for it runs is found revoked by the next look-up."""
    digest = await add_first_key(watched)
    watched.may_answer.clear()
    key_cache = KeyCache(watched, Presence(watched), PATIENCE_S)
    earlier = asyncio.create_task(key_cache.find(digest))
    await watched.has_read.wait()
    await watched.transact(lambda tx: keys.revoke(tx, "key_a", NOW_MS))
    later = asyncio.create_task(key_cache.find(digest))
    await asyncio.sleep(0)
    watched.may_answer.set()
    assert [key.revoked_at for key in (await earlier, await later) if key] == [None, NOW_MS]


async def test_a_look_up_that_is_cancelled_leaves_the_others(watched: CountingPostgres) -> None:
    """A client that disconnects does not end the query that others wait for."""
    digest = await add_first_key(watched)
    key_cache = KeyCache(watched, Presence(watched), PATIENCE_S)
    finding = [asyncio.create_task(key_cache.find(digest)) for _ in range(3)]
    await watched.has_read.wait()
    finding[0].cancel()
    found = await asyncio.gather(*finding[1:])
    assert [key.principal.key_id for key in found if key] == ["key_a", "key_a"]
    assert watched.queries == 1


async def test_a_store_that_hangs_fails_every_look_up(watched: CountingPostgres) -> None:
    """Queries that are not answered in time fail, those that wait for their turn too; later ones are made anew."""
    key_cache = KeyCache(watched, Presence(watched), wait_s=SHORT_S)
    watched.may_answer.clear()
    finding = list[asyncio.Task[keys.FoundKey | None]]()
    for number in range(QUERIES_AT_ONCE + 2):
        finding.append(asyncio.create_task(key_cache.find(UNKNOWN[number])))
        await asyncio.sleep(0)
    failed = await asyncio.gather(*finding, return_exceptions=True)
    assert {type(error) for error in failed} == {StoreUnavailable}
    watched.may_answer.set()
    assert await KeyCache(watched, Presence(watched), PATIENCE_S).find(UNKNOWN[0]) is None
