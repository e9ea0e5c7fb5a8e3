"""The sweep of a large process: by account and in batches, each of which leaves the ledger sound."""

import asyncio
from collections import Counter

import pytest

from cadenza.core.records import Cap, Outcome, Usage
from cadenza.fleet import presence
from cadenza.fleet.presence import HeartbeatBounds
from cadenza.ledger import sweeps
from cadenza.ledger.rules import Ended, HeldCredit
from cadenza.ledger.sweeps import BATCH_MAX, LeftRequest
from cadenza.store.schema import idempotency, marks, reserves
from cadenza.store.schema import processes as process_table
from cadenza.store.store import Store
from tests.store.aside import transaction
from tests.store.moves import (
    ALONE,
    ON_POSTGRES,
    PROCESS,
    QUIET,
    Progress,
    cap,
    cap_of,
    come_to_wait,
    comes_true,
    cost_of,
    findings,
    fund,
    hold_all,
    make_hold,
    make_outcome,
    mark_all,
    money,
    opened,
    reserves_of,
    sweep_process,
    take,
    writing,
)
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of

WHOLE_NANO = 2500
MARKED_NANO = 1210  # of a request with seven marked tokens
MANY = 2 * BATCH_MAX + 10
LOCK_B = "SELECT * FROM accounts WHERE id = 'acct_b' FOR UPDATE"
OBSERVER = HeartbeatBounds(heartbeat_every_s=0.05, fresh_s=0.3, gap_s=10.0, dead_s=0.5)


class Crash(Exception):
    """The sweeper is gone."""


async def leave_behind(store: Store, count: int, account: str = "a") -> list[str]:
    """A process that reserved all credit of an account for so many requests, marked them and died."""
    await fund(store, count * MARKED_NANO, account)
    await take(store, make_hold(f"{account}0", account=account, prompt_tokens=100 * count, allowance_tokens=7 * count))
    names = [f"{account}{number}" for number in range(count)]
    await mark_all(store, *names, account=account)
    return names


def test_a_plan_has_small_batches_and_ends_each_account_once() -> None:
    """No batch is larger than BATCH_MAX, no request is in two, and the last part of an account is marked as such."""
    sizes = {"a": 0, "b": 3 * BATCH_MAX, "c": 1, "d": BATCH_MAX - 1} | {f"e{n:03d}": n % 3 for n in range(BATCH_MAX)}
    requests = {name: [LeftRequest(f"{name}-{n}", has_mark=True) for n in range(size)] for name, size in sizes.items()}
    batches = [*sweeps.plan(requests, {})]
    parts = [share for batch in batches for share in batch]
    for batch in batches:
        assert sum(len(share.requests) for share in batch) <= BATCH_MAX
        assert len({share.account_id for share in batch}) == len(batch) <= BATCH_MAX
    assert len(batches) <= 2 * sum(1 + size for size in sizes.values()) // BATCH_MAX
    assert Counter(request.completion_id for share in parts for request in share.requests).most_common(1)[0][1] == 1
    last = {share.account_id: share for share in parts}  # in the order of the batches
    assert [share.account_id for share in parts if share.is_last] == [*sizes]
    assert all(share.is_last for share in last.values())


async def test_a_sweep_that_ends_in_the_middle_leaves_the_rest_to_another(store: Store) -> None:
    """The ledger is sound, the marks that follow keep their reserve, and each is charged once."""
    names = await leave_behind(store, MANY)

    def crash(_: list[Outcome]) -> None:
        raise Crash

    with pytest.raises(Crash):
        await sweeps.free_process(store, PROCESS, NOW_MS + 1000, crash)
    left = len(await rows_of(store, marks))
    assert left == MANY - BATCH_MAX
    assert await money(store) == (left * MARKED_NANO, left * MARKED_NANO)
    assert await findings(store) == []
    outcomes = await sweep_process(store)
    assert sorted(outcome.completion_id for outcome in outcomes) == sorted(names[BATCH_MAX:])
    assert (await money(store), await findings(store)) == ((0, 0), [])
    assert [await rows_of(store, table) for table in (marks, reserves, process_table)] == [[], [], []]


async def test_sweeps_at_the_same_time_charge_once(store: Store, url: str) -> None:
    """Several processes sweep one that died: together they charge every mark, and none twice."""
    names = []
    for account in "abcde":
        names += await leave_behind(store, BATCH_MAX // 2, account)
    outcomes: list[Outcome] = []
    async with opened(url) as near, opened(url) as far:
        sweeping = [sweeps.free_process(one, PROCESS, NOW_MS + 1000, outcomes.extend) for one in (near, far, near)]
        await asyncio.gather(*sweeping)
    outcomes += await sweep_process(store)
    assert sorted(outcome.completion_id for outcome in outcomes) == sorted(names)
    assert [await money(store, account) for account in "abcde"] == [(0, 0)] * 5
    assert await findings(store) == []


async def test_a_large_account_keeps_its_caps_and_keys_until_its_last_batch(rich: Store) -> None:
    """The keys of marked requests stay used and the others are freed; the cap is held for the marks that follow."""
    await cap(rich, Cap(MANY * MARKED_NANO))
    await take(rich, make_hold("a0", key=b"a" * 32, is_capped=True, allowance_tokens=7 * MANY))
    await take(rich, make_hold("unmarked", key=b"u" * 32, allowance_tokens=1))
    await mark_all(rich, *(f"a{number}" for number in range(MANY)))
    held = list[int]()
    assert await sweeps.free_process(rich, PROCESS, NOW_MS + 1000, lambda outcomes: held.append(len(outcomes))) == set()
    assert sum(held) == MANY
    figures = await cap_of(rich)
    assert (figures.spent_nano, figures.held_nano) == (MANY * MARKED_NANO, 0)
    assert [(row.digest, row.process) for row in await rows_of(rich, idempotency)] == [(b"a" * 32, None)]
    await rich.transact(lambda tx: presence.remove(tx, PROCESS))


@ON_POSTGRES
async def test_a_locked_account_is_left_out_and_swept_later(store: Store, url: str) -> None:
    """A session locks one account of a dead process: the others are freed at once, and this one after the lock."""
    for account in "abc":
        await leave_behind(store, 2, account)
    async with transaction(url) as other:
        await other.rows(LOCK_B)
        assert await sweeps.free_process(store, PROCESS, NOW_MS, lambda _: None) == {"acct_b"}
        assert [await money(store, account) for account in "abc"] == [(0, 0), (2420, 2420), (0, 0)]
        assert await findings(store) == []
    async with transaction(url) as other:
        await other.rows("SELECT * FROM marks WHERE completion_id = 'b1' FOR UPDATE")
        assert await sweeps.free_process(store, PROCESS, NOW_MS, lambda _: None) == {"acct_b"}
    assert [one.completion_id for one in await sweep_process(store)] == ["b0", "b1"]
    assert (await money(store, "b"), await findings(store)) == ((0, 0), [])


@ON_POSTGRES
async def test_the_sweep_of_a_locked_account_waits_for_its_turn(store: Store, url: str) -> None:
    """A busy account is never found unlocked: once the others are free, the sweep queues for its lock."""
    async with opened(url) as beside:
        for account in "abc":
            await leave_behind(store, 2, account)
        async with writing(beside, timing=ALONE, bounds=OBSERVER) as (sweeper, _), transaction(url) as other:
            await other.rows(LOCK_B)

            async def sweep() -> None:
                while await rows_of(store, reserves):
                    await sweeper.sweep()

            sweeping = asyncio.create_task(sweep())
            assert await come_to_wait(store, 1)
            assert [await money(store, account) for account in "abc"] == [(0, 0), (2420, 2420), (0, 0)]
            await other.execute("COMMIT")
            await sweeping
            await other.execute("BEGIN")
        assert (await money(store, "b"), await findings(store)) == ((0, 0), [])


@ON_POSTGRES
async def test_a_process_that_lives_while_it_is_swept_begins_again(store: Store, url: str) -> None:
    """One of its accounts is swept, the other is locked: it is fenced, and charges under a new name."""
    async with opened(url) as beside:
        for account in "ab":
            await fund(store, DOLLAR_NANO, account)
        async with writing(store, timing=ALONE, bounds=QUIET) as (silent, _):
            await hold_all(silent, [make_hold("r1"), make_hold("r2", account="b")])
            silent.track("r1", Progress(7))
            await silent.mark()
            swept = silent.presence.name
            async with transaction(url) as other:
                await other.rows(LOCK_B)
                async with writing(beside, timing=ALONE, bounds=OBSERVER) as (sweeper, _):

                    async def is_swept() -> bool:
                        await sweeper.sweep()
                        return await money(store) == (DOLLAR_NANO - MARKED_NANO, 0)

                    assert await comes_true(is_swept)
                assert [*await reserves_of(store, "b")] == [swept]
                assert await silent.end(make_outcome("r1", Usage(100, 50))) == Ended(MARKED_NANO, is_lost=True)
                assert silent.presence.name != swept
                assert isinstance(await silent.hold(make_hold("r3")), HeldCredit)
                await silent.end(make_outcome("r3"))
            assert await silent.end(make_outcome("r2", Usage(100, 1), account="b")) == Ended(1030)
        assert await sweep_process(store, swept) == []
        assert (await cost_of(store, "r1"), await cost_of(store, "r2")) == (MARKED_NANO, 1030)
        assert [await money(store, account) for account in "ab"] == [(DOLLAR_NANO - 1210, 0), (DOLLAR_NANO - 1030, 0)]
        assert await findings(store) == []
