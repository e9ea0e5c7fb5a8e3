"""Keys kept in memory on Postgres: once a change is made, no look-up of any process sees what was before."""

import asyncio
import contextlib
import os
import random
import time
from collections import deque

import pytest

from cadenza.fleet import presence
from cadenza.fleet.changes import make_change
from cadenza.fleet.presence import HeartbeatBounds
from cadenza.store.store import Store
from cadenza.store.tables import keys
from tests.store.aside import aside
from tests.store.fleet import HOUR_S, PATIENT, Member, member
from tests.store.moves import ON_POSTGRES, PATIENCE_S, comes_true
from tests.store.rows import NOW_MS, add_account, add_key

pytestmark = ON_POSTGRES

SEED = 14
REVOCATIONS = int(os.environ.get("CADENZA_REVOCATIONS") or 150)
AT_ONCE = 5
NEAR = 10
STILL = HeartbeatBounds(heartbeat_every_s=HOUR_S, fresh_s=HOUR_S)  # a deaf process sends nothing in the background
HASTY = HeartbeatBounds(heartbeat_every_s=0.05, fresh_s=HOUR_S)
DROP_WATCHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND (query ILIKE 'listen%' OR query = 'SELECT 1') AND pid <> pg_backend_pid()"""


@pytest.fixture
async def command(store: Store) -> Store:
    """The store as a command has it: with an account and its key, whose digest is that of `key_a`."""
    await add_account(store)
    return store


async def revoke(store: Store, key_id: str = "key_a", bounds: HeartbeatBounds = PATIENT) -> None:
    async with asyncio.timeout(PATIENCE_S):
        assert await make_change(store, lambda tx: keys.revoke(tx, key_id, NOW_MS), bounds)


async def test_a_kept_key_sends_nothing(command: Store, url: str) -> None:
    """The first look-up of a key is one query, and the next hundred are none."""
    digest = await add_key(command)
    async with member(url, STILL, is_deaf=True) as one:
        assert [await one.queries(digest) for _ in range(101)] == [1, *[0] * 100]


async def test_unknown_digests_are_not_kept(command: Store, url: str) -> None:
    """Every look-up of an unknown digest asks the store, so a key works as soon as it is created."""
    unknown = b"%032d" % 1
    async with member(url, STILL, is_deaf=True) as one:
        assert [await one.queries(unknown) for _ in range(3)] == [1, 1, 1]
        digest = await add_key(command)
        assert await one.finds_live(digest)


async def test_the_keys_that_were_used_last_are_kept(command: Store, url: str) -> None:
    """Of three keys with room for two, the one that was used least recently is dropped."""
    one_key, two, three = [await add_key(command, f"key_{number}") for number in range(3)]
    async with member(url, STILL, is_deaf=True, keys_max=2) as one:
        assert [await one.queries(digest) for digest in (one_key, two, one_key, three)] == [1, 1, 0, 1]
        assert [await one.queries(digest) for digest in (one_key, three, two)] == [0, 0, 1]


async def test_a_process_that_is_not_fresh_asks_the_store(command: Store, url: str) -> None:
    """Once the last confirmed beat is too old, a kept key is not used."""
    digest = await add_key(command)
    async with member(url, HeartbeatBounds(heartbeat_every_s=HOUR_S, fresh_s=1.0), is_deaf=True) as one:
        await one.key_cache.find(digest)
        assert await comes_true(lambda: not one.presence.is_fresh)
        assert [await one.queries(digest) for _ in range(2)] == [1, 1]


@pytest.mark.parametrize("is_deaf", [False, True])
async def test_a_revoked_key_is_live_nowhere(command: Store, url: str, is_deaf: bool) -> None:
    """When the command returns no process that kept it finds it live, not even one that hears of no change."""
    digest = await add_key(command)
    async with member(url, is_deaf=is_deaf) as one, member(url) as two:
        assert [await each.finds_live(digest) for each in (one, two, one, two)] == [True] * 4
        await revoke(command)
        assert [await each.finds_live(digest) for each in (one, two)] == [False, False]


async def test_a_process_that_does_not_answer_is_waited_for_until_it_is_not_fresh(command: Store, url: str) -> None:
    """Its transactions stall, but its look-ups work: the command waits, without an error, until it asks the store."""
    digest = await add_key(command)
    bounds = HeartbeatBounds(heartbeat_every_s=0.05, fresh_s=2.0)
    async with member(url, bounds) as stalled, member(url, bounds) as other:
        assert [await each.finds_live(digest) for each in (stalled, other)] == [True, True]
        stalled.store.may_change.clear()
        before_s = time.monotonic()
        await revoke(command, bounds=bounds)
        assert time.monotonic() - before_s >= bounds.fresh_s
        assert not stalled.presence.is_fresh
        assert [await each.finds_live(digest) for each in (stalled, other)] == [False, False]


async def test_an_answer_from_before_a_change_is_not_kept(command: Store, url: str) -> None:
    """A query that read the live key answers after the process has followed the revocation: the next one asks again."""
    digest = await add_key(command)
    async with member(url) as one:
        one.store.may_answer.clear()
        earlier = asyncio.create_task(one.finds_live(digest))
        await one.store.has_read.wait()
        await revoke(command)
        one.store.may_answer.set()
        assert await earlier
        assert not await one.finds_live(digest)


async def test_after_an_outage_everything_is_read_again(command: Store, url: str) -> None:
    """The connections of a process are dropped and a beat fails: it looks its keys up anew."""
    digest = await add_key(command)
    async with member(url, HASTY) as one, aside(url) as other:
        await one.key_cache.find(digest)
        epoch = one.presence.epoch
        await other.execute("ALTER TABLE processes RENAME TO processes_away")
        assert await comes_true(lambda: one.presence.epoch is None)
        await other.execute("ALTER TABLE processes_away RENAME TO processes")
        assert await comes_true(lambda: one.presence.epoch == epoch and one.presence.is_fresh)
        before = one.store.sent
        await one.key_cache.find(digest)
        assert one.store.sent > before


async def rejoin(one: Member, turn: asyncio.Lock) -> None:
    """As after a sweep, which removes the row of the old name. In turns: no name is left that nobody answers for."""
    async with turn:
        before = one.presence.name
        await one.presence.rejoin()
        await one.store.transact(lambda tx: presence.remove(tx, before))


class Watch:
    """Looks keys up without a pause. A look-up that begins after a revocation has returned must see it."""

    def __init__(self, digests: dict[str, bytes]) -> None:
        self.digests = digests
        self.revoked = set[bytes]()  # of those whose command has returned
        self.key_cache = 0
        self.violations = 0

    async def look(self, one: Member, chance: random.Random) -> None:
        """Of the keys whose turn to be revoked is near."""
        digests = list(self.digests.values())
        while True:
            turn = len(self.revoked)
            digest = chance.choice(digests[max(0, turn - NEAR) : turn + NEAR])
            was_revoked = digest in self.revoked
            is_live = await one.finds_live(digest)
            self.key_cache += 1
            self.violations += was_revoked and is_live
            if chance.random() < 0.2:
                await asyncio.sleep(0)


async def test_no_interleaving_finds_a_revoked_key_live(command: Store, url: str) -> None:
    """Many keys are revoked while three processes look up; watchers are lost and a process begins again meanwhile."""
    chance = random.Random(SEED)
    digests = {f"key_{number}": await add_key(command, f"key_{number}") for number in range(REVOCATIONS)}
    watch, waiting, turn = Watch(digests), deque(digests), asyncio.Lock()
    async with contextlib.AsyncExitStack() as stack:
        members = [await stack.enter_async_context(member(url, HASTY, is_deaf=number == 2)) for number in range(3)]
        other = await stack.enter_async_context(aside(url))
        looking = [asyncio.create_task(watch.look(one, random.Random(n))) for n, one in enumerate(members * 3)]

        async def revoke_some() -> None:
            while waiting:
                key_id = waiting.popleft()
                await asyncio.sleep(chance.choice([0, 0, 0.002, 0.01]))
                await revoke(chance.choice([command, *(one.store for one in members)]), key_id)
                watch.revoked.add(digests[key_id])
                if chance.random() < 0.02:
                    await other.rows(DROP_WATCHERS)
                elif chance.random() < 0.02:
                    await rejoin(chance.choice(members), turn)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(revoke_some())
        for task in looking:
            task.cancel()
        await asyncio.wait(looking)
        assert [task for task in looking if not task.cancelled()] == []
        assert watch.violations == 0
        assert len(watch.revoked) == REVOCATIONS
        assert sum(one.store.queries for one in members) < watch.key_cache


async def test_a_process_that_lost_its_watcher_follows(command: Store, url: str) -> None:
    """The connection that listens is ended just before the revocation."""
    digest = await add_key(command)
    async with member(url) as one, aside(url) as other:
        assert await one.finds_live(digest)
        assert len(await other.rows(DROP_WATCHERS)) == 1
        await revoke(command)
        assert not await one.finds_live(digest)
