"""Spend caps in the store: exact over all processes, through crashes and sweeps, in total and by month."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cadenza.core.records import Cap, Usage
from cadenza.ledger.caps import CapStatus
from cadenza.ledger.rules import Ended, HeldCredit, Insufficient
from cadenza.ledger.timing import LedgerTiming
from cadenza.ledger.writer import LedgerWriter
from cadenza.store.schema import accounts, cap_holds, caps, keys
from cadenza.store.store import Store, StoreRefused, StoreUnavailable
from tests.postgres import Postgres
from tests.store.lossy import lossy_line
from tests.store.moves import (
    ALONE,
    ON_POSTGRES,
    PRICE,
    QUIET,
    Progress,
    cap,
    cap_of,
    comes_true,
    cost_of,
    findings,
    fund,
    hold_all,
    make_hold,
    make_outcome,
    money,
    opened,
    sweep_process,
    writing,
)
from tests.store.rows import DOLLAR_NANO, NOW_MS, add_key, rows_of, run_sql
from tests.store.spenders import numbers, process

ONE_NANO = PRICE.quote(100, 16)  # held whole or not at all
WHOLE_NANO = 2500
DAY_MS = 24 * 60 * 60 * 1000
NEXT_MONTH_MS = NOW_MS + 31 * DAY_MS
JANUARY, FEBRUARY = 202701, 202702


@pytest.fixture
async def rich(rich: Store) -> AsyncIterator[Store]:
    """An account with one dollar; at the end of the test no cap holds anything."""
    yield rich
    assert await rows_of(rich, cap_holds) == []


async def hold(writer: LedgerWriter, completion_id: str, started_at: int = NOW_MS) -> HeldCredit:
    answer = await writer.hold(make_hold(completion_id, is_capped=True, started_at=started_at))
    assert isinstance(answer, HeldCredit)
    return answer


async def refused(writer: LedgerWriter, completion_id: str, started_at: int = NOW_MS) -> Insufficient:
    answer = await writer.hold(make_hold(completion_id, is_capped=True, started_at=started_at))
    assert isinstance(answer, Insufficient)
    return answer


async def end(writer: LedgerWriter, completion_id: str, usage: Usage | None = None) -> Ended:
    ended = await writer.end(make_outcome(completion_id, usage))
    assert isinstance(ended, Ended)
    return ended


async def spend(writer: LedgerWriter, completion_id: str, started_at: int = NOW_MS) -> int:
    """One request that uses all of its hold. Return what it cost."""
    await hold(writer, completion_id, started_at)
    return (await end(writer, completion_id, Usage(100, 50))).charged_nano


async def figures(store: Store) -> tuple[int, int]:
    """What is spent of the cap, and what is held of it."""
    found = await cap_of(store)
    return found.spent_nano, found.held_nano


async def test_a_key_spends_exactly_its_cap(rich: Store) -> None:
    """Holds are taken while the cap pays for them, are refused after that, and the account keeps the rest."""
    await cap(rich, Cap(2 * WHOLE_NANO))
    async with writing(rich) as (writer, _):
        await hold(writer, "r1")
        assert await figures(rich) == (0, WHOLE_NANO)
        assert await spend(writer, "r2") == WHOLE_NANO
        answer = await refused(writer, "r3")
        assert answer == Insufficient(0, ONE_NANO, CapStatus(Cap(2 * WHOLE_NANO), WHOLE_NANO, 0))
        await end(writer, "r1", Usage(100, 10))
        assert await figures(rich) == (WHOLE_NANO + 1300, 0)
        assert (await refused(writer, "r4")).free_nano == WHOLE_NANO - 1300
    assert await money(rich) == (DOLLAR_NANO - WHOLE_NANO - 1300, 0)


async def test_other_keys_of_the_account_are_not_capped(rich: Store) -> None:
    """They hold and pay as before, in memory too, and nothing of it counts for the cap."""
    await add_key(rich, "key_free")
    await cap(rich, Cap(0))
    async with writing(rich) as (writer, _):
        for number in range(3):
            answer = await writer.hold(make_hold(f"r{number}", key_id="key_free"))
            assert answer == HeldCredit(WHOLE_NANO, 50)
            await end(writer, f"r{number}", Usage(100, 50))
        await refused(writer, "r9")
    assert await figures(rich) == (0, 0)


async def test_two_processes_share_a_cap(rich: Store, url: str) -> None:
    """What one holds, the other cannot, until it is given back."""
    await cap(rich, Cap(WHOLE_NANO))
    async with opened(url) as beside, writing(rich) as (writer, _), writing(beside) as (other, _):
        await hold(writer, "r1")
        await refused(other, "r2")
        await end(writer, "r1")
        await hold(other, "r3")
        await refused(writer, "r4")
        await end(other, "r3", Usage(100, 50))
        await refused(writer, "r5")
    assert await figures(rich) == (WHOLE_NANO, 0)


async def test_processes_that_spend_at_once_do_not_pass_a_cap(store: Store, url: str) -> None:
    """Of two processes with 60 requests each on a cap for 40, 40 are served, and no nano-dollar is spent beyond it."""
    await fund(store, DOLLAR_NANO, "rich7")
    limit_nano = 40 * ONE_NANO + 11
    await cap(store, Cap(limit_nano), "key_rich7")
    async with process("spend", url, "one", "60") as one, process("spend", url, "two", "60") as two:
        for running in (one, two):
            await running.hear_word("ready")
        for running in (one, two):
            running.tell("7 capped")
        (held, charged_nano), (held_too, charged_too_nano) = await numbers(one), await numbers(two)
    found = await cap_of(store, "key_rich7")
    assert held + held_too <= 40
    assert found.spent_nano == charged_nano + charged_too_nano == DOLLAR_NANO - (await money(store, "rich7"))[0]
    assert limit_nano - ONE_NANO < found.spent_nano <= limit_nano
    assert (found.held_nano, found.excused_nano, await findings(store)) == (0, 0, [])


async def test_a_cap_counts_what_was_spent_before_it(rich: Store) -> None:
    """All of it for a cap in total, and the requests of this month for one by month."""
    async with writing(rich) as (writer, _):
        for completion_id, started_at in (("r1", NOW_MS), ("r2", NEXT_MONTH_MS)):
            await writer.hold(make_hold(completion_id, started_at=started_at))
            await end(writer, completion_id, Usage(100, 50))
    for period_cap, spent_nano, month in (
        (Cap(9, "month"), WHOLE_NANO, JANUARY),
        (Cap(9), 2 * WHOLE_NANO, 0),
        (Cap(9000), 2 * WHOLE_NANO, 0),
    ):
        await cap(rich, period_cap)
        found = await cap_of(rich)
        assert (found.spent_nano, found.month) == (spent_nano, month)
        assert found.excused_nano == max(0, spent_nano - period_cap.limit_nano)


async def test_a_request_that_runs_when_the_cap_is_set_is_counted(rich: Store) -> None:
    """It was held in memory without a cap: it is charged in full and counts, also beyond the limit."""
    async with writing(rich) as (writer, _):
        for completion_id in ("r1", "r2"):
            await writer.hold(make_hold(completion_id))
        await cap(rich, Cap(WHOLE_NANO + 500))
        assert (await end(writer, "r1", Usage(100, 50))).charged_nano == WHOLE_NANO
        await refused(writer, "r3")
        ended = await end(writer, "r2", Usage(100, 50))
        assert (ended.charged_nano, ended.is_lost) == (WHOLE_NANO, False)
    found = await cap_of(rich)
    assert (found.spent_nano, found.excused_nano) == (2 * WHOLE_NANO, WHOLE_NANO - 500)


async def test_a_removed_cap_leaves_nothing(rich: Store) -> None:
    """The account and the key are not marked any more; requests that ran under the cap end as usual."""
    async with writing(rich) as (writer, _):
        await cap(rich, Cap(WHOLE_NANO))
        await hold(writer, "r1")
        await cap(rich, None)
        assert (await rows_of(rich, caps), await rows_of(rich, cap_holds)) == ([], [])
        [account], [key] = await rows_of(rich, accounts), await rows_of(rich, keys)
        assert not account.has_caps
        assert not key.is_capped
        await hold(writer, "r2")
        for completion_id in ("r1", "r2"):
            assert (await end(writer, completion_id, Usage(100, 50))).charged_nano == WHOLE_NANO


async def test_a_cap_that_is_set_again_knows_what_runs(rich: Store) -> None:
    """Requests that began under the earlier cap hold a part of the new one, as soon as their process writes."""
    async with writing(rich) as (writer, _):
        await cap(rich, Cap(9 * WHOLE_NANO))
        await hold(writer, "r1")
        await cap(rich, None)
        await cap(rich, Cap(2 * WHOLE_NANO))
        await hold(writer, "r2")
        assert await figures(rich) == (0, 2 * WHOLE_NANO)
        await refused(writer, "r3")
        for completion_id in ("r1", "r2"):
            await end(writer, completion_id, Usage(100, 50))
    assert await figures(rich) == (2 * WHOLE_NANO, 0)


async def test_a_month_begins_anew(rich: Store) -> None:
    """The first request of a month has the whole cap; one of the month before counts for that month when it ends."""
    async with writing(rich) as (writer, _):
        await cap(rich, Cap(2 * WHOLE_NANO, "month"))
        await spend(writer, "r1")
        await hold(writer, "late")
        await refused(writer, "r2")
        await hold(writer, "r3", NEXT_MONTH_MS)
        found = await cap_of(rich)
        assert (found.month, found.spent_nano, found.held_nano) == (FEBRUARY, 0, 2 * WHOLE_NANO)
        await end(writer, "late", Usage(100, 50))
        assert await figures(rich) == (0, WHOLE_NANO)
        await end(writer, "r3", Usage(100, 50))
        assert await figures(rich) == (WHOLE_NANO, 0)
        await refused(writer, "r4")  # of January, and January is spent
        await spend(writer, "r5", NEXT_MONTH_MS)
        await refused(writer, "r6", NEXT_MONTH_MS)


async def test_the_marks_of_a_dead_process_do_not_pass_a_cap(rich: Store) -> None:
    """A cap that was lowered meanwhile is charged no further than it goes."""
    async with writing(rich, timing=ALONE, bounds=QUIET) as (writer, _):
        await cap(rich, Cap(9 * WHOLE_NANO))
        await hold(writer, "r1")
        writer.track("r1", Progress(40))
        await writer.mark()
        await cap(rich, Cap(1000))
        await sweep_process(rich, writer.presence.name)
        assert (await cost_of(rich, "r1"), await figures(rich)) == (1000, (1000, 0))
        assert (await end(writer, "r1", Usage(100, 40))).is_lost


@ON_POSTGRES
async def test_a_hold_whose_commit_is_unknown_does_not_stay(
    store: Store, url: str, postgres: Postgres, tmp_path: Path
) -> None:
    """The request is refused, and the next batch of the account gives back what the store held for it."""
    async with lossy_line(postgres, tmp_path) as line:
        await fund(store, DOLLAR_NANO)
        await cap(store, Cap(WHOLE_NANO))
        async with opened(line.url_of(url)) as lossy, writing(lossy, timing=ALONE, bounds=QUIET) as (writer, _):
            line.lose_next_commit()
            with contextlib.suppress(StoreUnavailable):
                await hold(writer, "r1")
            await line.lost.wait()
            assert await figures(store) == (0, WHOLE_NANO)
            await hold(writer, "r2")
            assert await figures(store) == (0, WHOLE_NANO)
            await end(writer, "r2", Usage(100, 50))
        assert (await figures(store), await findings(store)) == ((WHOLE_NANO, 0), [])


async def test_a_hold_that_a_process_does_not_know_is_given_back_in_time(rich: Store) -> None:
    """A failover may bring back a row of an earlier time: the process notices and removes it."""
    timing = LedgerTiming(reconcile_every_s=0.05)
    await cap(rich, Cap(WHOLE_NANO))
    async with writing(rich, timing=timing) as (writer, _):
        name = writer.presence.name
        await run_sql(rich, f"INSERT INTO cap_holds VALUES ('key_a', '{name}', {WHOLE_NANO})")
        assert await comes_true(lambda: figures(rich), becomes=(0, 0))
        await spend(writer, "r1")


async def test_the_database_refuses_to_pass_a_cap(rich: Store) -> None:
    """Whatever program writes: spent is at most the limit and what is excused."""
    await cap(rich, Cap(500))
    with pytest.raises(StoreRefused):
        await run_sql(rich, "UPDATE caps SET spent_nano = 501")


@pytest.mark.parametrize("payable", [1, 7, 60])
async def test_exactly_the_payable_requests_of_many_are_held(rich: Store, payable: int) -> None:
    """Of 100 holds at once on a cap for k, exactly k are taken, although the account could pay for all."""
    await cap(rich, Cap(payable * ONE_NANO + 7))
    wanted = [make_hold(f"r{number}", allowance_tokens=16, is_capped=True) for number in range(100)]
    async with writing(rich) as (writer, _):
        answers = await hold_all(writer, wanted)
        held = [one for one, answer in zip(wanted, answers, strict=True) if isinstance(answer, HeldCredit)]
        assert len(held) == payable
        assert await figures(rich) == (0, payable * ONE_NANO)
        for one in held:
            await end(writer, one.completion_id, Usage(100, 16))
    assert await figures(rich) == (payable * ONE_NANO, 0)


async def test_a_request_of_an_earlier_cap_is_charged_in_full(rich: Store) -> None:
    """It ends before its process has written anything under the new cap."""
    async with writing(rich) as (writer, _):
        await cap(rich, Cap(9 * WHOLE_NANO))
        await hold(writer, "r1")
        await cap(rich, None)
        await cap(rich, Cap(100))
        ended = await end(writer, "r1", Usage(100, 50))
        assert (ended.charged_nano, ended.is_lost) == (WHOLE_NANO, False)
        await refused(writer, "r2")
    assert await figures(rich) == (WHOLE_NANO, 0)


async def test_a_living_process_that_was_swept_takes_nothing_from_others(rich: Store, url: str) -> None:
    """Its requests have lost their holds: they pay what the cap leaves, and what others hold stays theirs."""
    await cap(rich, Cap(2 * WHOLE_NANO))
    async with (
        opened(url) as beside,
        writing(rich, timing=ALONE, bounds=QUIET) as (writer, _),
        writing(beside, timing=ALONE, bounds=QUIET) as (other, _),
    ):
        for completion_id in ("r1", "r2"):
            await hold(writer, completion_id)
        await sweep_process(rich, writer.presence.name)
        await hold(other, "r3")
        ended = await end(writer, "r1", Usage(100, 50))
        assert (ended.charged_nano, ended.is_lost) == (WHOLE_NANO, False)
        ended = await end(writer, "r2", Usage(100, 50))
        assert (ended.charged_nano, ended.is_lost) == (0, True)
        assert await figures(rich) == (WHOLE_NANO, WHOLE_NANO)
        assert (await end(other, "r3", Usage(100, 50))).charged_nano == WHOLE_NANO
        await refused(writer, "r4")
