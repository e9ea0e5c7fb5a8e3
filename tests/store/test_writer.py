"""The writer: few commits for many requests, charges answered only when durable, and none lost to a cancellation."""

import asyncio
from functools import partial

import msgspec
import pytest
from sqlalchemy import text

from cadenza.core.records import Usage
from cadenza.ledger.committer import BATCH_MAX
from cadenza.ledger.rules import Ended, HeldCredit, Insufficient, Repeated
from cadenza.ledger.timing import LedgerTiming
from cadenza.store.schema import entries, marks, processes, reserves
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction
from cadenza.store.tables.accounts import get
from tests.store.moves import (
    ALONE,
    HOUR_S,
    MARKS_AT_ONCE,
    PATIENCE_S,
    QUIET,
    Progress,
    Steps,
    comes_true,
    cost_of,
    counted,
    end_all,
    findings,
    fund,
    hold_all,
    make_hold,
    make_outcome,
    mark_of,
    money,
    opened,
    queue_all,
    register,
    reserves_of,
    writing,
)
from tests.store.rows import DOLLAR_NANO, rows_of, run_sql

WHOLE_NANO = 2500  # the amount of an ordinary hold
BAD_MS = 2**63  # too large for its column


async def test_moves_that_wait_together_share_a_commit(rich: Store) -> None:
    """300 holds and 300 outcomes at once take few commits, and each gets its own answer."""
    names = [f"r{number}" for number in range(300)]
    async with writing(rich, timing=ALONE, bounds=QUIET) as (writer, metrics):
        held = await hold_all(writer, map(make_hold, names))
        ended = await end_all(writer, (make_outcome(name, Usage(100, number)) for number, name in enumerate(names)))
        assert counted(metrics, "ledger_commits") <= 8
    assert [(answer.amount_nano, answer.allowance_tokens) for answer in held if isinstance(answer, HeldCredit)] == [
        (WHOLE_NANO, 50)
    ] * 300
    assert ended == [Ended(1000 + 30 * number) for number in range(300)]
    assert await money(rich) == (DOLLAR_NANO - 300 * 1000 - 30 * sum(range(300)), 0)


async def test_with_ample_credit_a_request_costs_one_commit(rich: Store) -> None:
    """60 requests one after the other cost 60 commits for their charges and hardly any for their holds."""
    async with writing(rich, timing=ALONE, bounds=QUIET) as (writer, metrics):
        for number in range(60):
            await writer.hold(make_hold(f"r{number}"))
            await writer.end(make_outcome(f"r{number}", Usage(100, 1)))
        assert counted(metrics, "ledger_commits") <= 60 + 5
    assert await money(rich) == (DOLLAR_NANO - 60 * 1030, 0)


async def test_a_charge_is_answered_after_the_commit(rich: Store, url: str) -> None:
    """When a caller has its answer, another connection sees the row; a hold is covered by a durable reserve."""

    async def serve(name: str) -> None:
        await writer.hold(make_hold(name))
        assert (await money(beside))[1] >= WHOLE_NANO
        await writer.end(make_outcome(name, Usage(100, 1)))
        assert await cost_of(beside, name) == 1030

    async with opened(url) as beside, writing(rich) as (writer, _):
        await asyncio.gather(*(serve(f"r{number}") for number in range(20)))


async def test_each_kind_of_answer_reaches_its_caller(store: Store) -> None:
    """In one batch: held, repeated, partly held, insufficient and charged."""
    await fund(store, 2 * WHOLE_NANO + 1480)
    first, again = make_hold("r1", key=b"k" * 32), make_hold("r2", key=b"k" * 32)
    async with writing(store, timing=ALONE) as (writer, metrics):
        await writer.hold(make_hold("r0"))
        queued = await queue_all(writer, [first, again, make_hold("r3"), make_hold("r4")])
        ended = await end_all(writer, [make_outcome("r0", Usage(100, 50))])
        answers = await asyncio.gather(*queued)
        assert answers == [
            HeldCredit(WHOLE_NANO, 50),
            Repeated("r1", "req-r1"),
            HeldCredit(1480, 16),
            Insufficient(0, 1480),
        ]
        assert ended == [Ended(WHOLE_NANO)]
        assert counted(metrics, "ledger_commits") == 2
        await end_all(writer, [make_outcome("r1"), make_outcome("r3")])
    assert await findings(store) == []


async def test_a_hold_cancelled_in_the_queue_is_not_taken(rich: Store) -> None:
    """A hold whose caller is cancelled before its batch is written leaves nothing held."""
    async with writing(rich, timing=ALONE) as (writer, _):
        (leaving,) = await queue_all(writer, [make_hold("r1", key=b"k" * 32)])
        leaving.cancel()
        assert isinstance(await writer.hold(make_hold("r2", key=b"k" * 32)), HeldCredit)
        await writer.end(make_outcome("r2"))
    assert leaving.cancelled()
    assert await money(rich) == (DOLLAR_NANO, 0)


@pytest.mark.parametrize("key", [None, b"k" * 32])
@pytest.mark.parametrize("when", ["before its commit", "after its commit", "after its answer"])
async def test_a_hold_that_is_cancelled_is_released(store: Store, when: str, key: bytes | None) -> None:
    """Whose caller leaves just before or after the commit, or before it has received the answer; its key is free."""
    await fund(store, WHOLE_NANO)
    steps, loop = Steps(), asyncio.get_running_loop()
    async with writing(store, steps) as (writer, _):
        leaving = asyncio.create_task(writer.hold(make_hold(key=key)))
        leave = partial(loop.call_soon, leaving.cancel) if when == "after its answer" else leaving.cancel
        steps.actions["ledger_commit" if when == "before its commit" else "ledger_committed"] = [leave]
        await asyncio.wait({leaving})
        assert leaving.cancelled()
        await writer.drained()
        assert isinstance(await writer.hold(make_hold("r2", key=key)), HeldCredit)
        await writer.end(make_outcome("r2"))
    assert await cost_of(store) == 0
    assert (await money(store), await findings(store)) == ((WHOLE_NANO, 0), [])


async def test_an_outcome_is_written_though_nobody_waits(rich: Store) -> None:
    """The charge is made if the caller was cancelled, and if it never waited."""
    async with writing(rich) as (writer, _):
        await hold_all(writer, [make_hold("r1"), make_hold("r2")])

        async def settle() -> None:
            await writer.end(make_outcome("r1", Usage(100, 50)))

        leaving = asyncio.create_task(settle())
        await asyncio.sleep(0)
        leaving.cancel()
        writer.end(make_outcome("r2", Usage(100, 50)))
    assert await money(rich) == (DOLLAR_NANO - 2 * WHOLE_NANO, 0)


async def test_a_bad_hold_fails_alone(rich: Store) -> None:
    """A hold that cannot be stored fails with its reason; the others of its batch are taken and ended."""
    async with writing(rich) as (writer, metrics):
        await writer.hold(make_hold("r0"))
        bad = make_hold("bad", key=b"b" * 32, started_at=BAD_MS)
        queued = await queue_all(writer, [make_hold("r1", key=b"1" * 32), bad, make_hold("r2", key=b"2" * 32)])
        assert await writer.end(make_outcome("r0", Usage(100, 50))) == Ended(WHOLE_NANO)
        one, failed, two = await asyncio.gather(*queued, return_exceptions=True)
        assert [type(one), type(two)] == [HeldCredit, HeldCredit]
        assert isinstance(failed, Exception)
        assert counted(metrics, "ledger_refused") == 1
        await end_all(writer, [make_outcome("r1"), make_outcome("r2")])
    assert await money(rich) == (DOLLAR_NANO - WHOLE_NANO, 0)


async def test_a_bad_outcome_fails_alone(rich: Store) -> None:
    """An outcome with a number too large for its column fails once; it neither blocks the others nor is retried."""
    async with writing(rich) as (writer, metrics):
        await hold_all(writer, [make_hold("r1"), make_hold("r2")])
        absurd = msgspec.structs.replace(make_outcome("r1", Usage(100, 1)), duration_ms=BAD_MS)
        bad, good = writer.end(absurd), writer.end(make_outcome("r2", Usage(100, 1)))
        assert await good == Ended(1030)
        with pytest.raises(Exception, match=r"too large|out of range|invalid input"):
            await bad
        assert counted(metrics, "ledger_refused") == 1
        assert counted(metrics, "ledger_retries") == 0
    assert await money(rich) == (DOLLAR_NANO - 1030, 0)


async def test_an_unpaid_remainder_is_counted(store: Store) -> None:
    """The metric has what was due and the account could not pay. The reply is complete: its hold was charged."""
    await fund(store, WHOLE_NANO)
    async with writing(store) as (writer, metrics):
        await writer.hold(make_hold())
        assert await writer.end(make_outcome(usage=Usage(100, 60))) == Ended(WHOLE_NANO, short_nano=300)
        assert counted(metrics, "ledger_short_nano") == 300
        assert counted(metrics, "ledger_lost") == 0


async def test_deliveries_are_marked_while_the_request_runs(rich: Store) -> None:
    """The writer marks a tracked request by itself, of no more prompt than is held, and deletes it with its charge."""
    progress = Progress(7)

    async def is_marked() -> bool:
        return await mark_of(rich) == progress.delivered_tokens

    async with writing(rich, timing=MARKS_AT_ONCE) as (writer, _):
        await writer.hold(make_hold(prompt_tokens=90))
        writer.track("r1", progress)
        assert await comes_true(is_marked)
        assert [row.prompt_tokens for row in await rows_of(rich, marks)] == [90]
        progress.delivered_tokens = 9
        assert await comes_true(is_marked)
        await writer.end(make_outcome(usage=Usage(100, 9)))
        progress.delivered_tokens = 40
        await writer.mark()
    assert (await mark_of(rich), await money(rich)) == (0, (DOLLAR_NANO - 1270, 0))


@pytest.mark.parametrize(("mark_after_s", "marked_tokens"), [(0.0, 7), (HOUR_S, 0)])
async def test_short_requests_are_not_marked(rich: Store, mark_after_s: float, marked_tokens: int) -> None:
    """A request is marked only when it has run for as long as the timing says."""
    async with writing(rich, timing=LedgerTiming(mark_after_s=mark_after_s, mark_every_s=HOUR_S)) as (writer, _):
        await writer.hold(make_hold())
        writer.track("r1", Progress(7))
        await writer.mark()
        assert await mark_of(rich) == marked_tokens
        await writer.end(make_outcome())


async def test_a_request_that_ends_while_it_is_counted_leaves_no_mark(rich: Store) -> None:
    """Its mark comes too late, or is deleted again."""
    async with writing(rich, timing=ALONE) as (writer, _):
        for number, steps in enumerate(range(0, 60, 3)):
            completion_id = f"r{number}"
            await writer.hold(make_hold(completion_id))
            writer.track(completion_id, Progress(7))
            marking = asyncio.create_task(writer.mark())
            for _ in range(steps):
                await asyncio.sleep(0)
            await writer.end(make_outcome(completion_id, Usage(100, 7)))
            await marking
            assert await mark_of(rich, completion_id) == 0
    assert await money(rich) == (DOLLAR_NANO - 20 * 1210, 0)


async def test_drained_waits_for_everything_queued(rich: Store) -> None:
    """After `drained`, outcomes that nobody awaited are durable, also those of a task that was still counting."""
    async with writing(rich) as (writer, _):
        await hold_all(writer, [make_hold("r1"), make_hold("r2")])
        may_end = asyncio.Event()

        async def end_later() -> None:
            await may_end.wait()
            writer.end(make_outcome("r2", Usage(100, 1)))

        writer.run_to_completion(end_later())
        writer.end(make_outcome("r1", Usage(100, 1)))
        draining = asyncio.create_task(writer.drained())
        may_end.set()
        await draining
        assert (await money(rich))[0] == DOLLAR_NANO - 2060


async def test_stopping_writes_the_backlog(rich: Store) -> None:
    """Outcomes that are queued when the writer stops are written first, even more than one batch."""
    names = [f"r{number}" for number in range(BATCH_MAX + 44)]
    async with writing(rich) as (writer, _):
        await hold_all(writer, map(make_hold, names))
        for name in names:
            writer.end(make_outcome(name, Usage(100, 50)))
    assert await money(rich) == (DOLLAR_NANO - len(names) * WHOLE_NANO, 0)


async def test_stopping_gives_everything_back(rich: Store) -> None:
    """A stopped process leaves no reserve and no row of its own, whether its requests were charged or not."""
    await fund(rich, DOLLAR_NANO, "b")
    async with writing(rich, timing=ALONE) as (writer, _):
        await hold_all(writer, [make_hold("r1"), make_hold("r2", account="b")])
        await end_all(writer, [make_outcome("r1", Usage(100, 1)), make_outcome("r2", account="b")])
        assert (await money(rich))[1] > 0
    assert (await rows_of(rich, reserves), await rows_of(rich, processes)) == ([], [])
    assert [await money(rich), await money(rich, "b")] == [(DOLLAR_NANO - 1030, 0), (DOLLAR_NANO, 0)]
    assert len(await rows_of(rich, entries)) == 3


async def test_an_idle_reserve_is_given_back(rich: Store) -> None:
    """Some time after the last request nothing is held, though the writer runs on."""

    async def nothing_is_held() -> bool:
        return (await money(rich))[1] == 0

    async with writing(rich, timing=LedgerTiming(idle_s=0.1)) as (writer, _):
        await writer.hold(make_hold())
        assert (await money(rich))[1] > WHOLE_NANO
        await writer.end(make_outcome(usage=Usage(100, 1)))
        assert await comes_true(nothing_is_held)
        assert await reserves_of(rich) == {}
        assert isinstance(await writer.hold(make_hold("r2")), HeldCredit)
        await writer.end(make_outcome("r2"))
    assert await money(rich) == (DOLLAR_NANO - 1030, 0)


async def test_a_reserve_that_its_process_does_not_know_is_given_back(rich: Store) -> None:
    """After a failover the store may have a reserve that the process gave back: it is reconciled."""
    timing = msgspec.structs.replace(ALONE, reconcile_every_s=0.02)
    async with writing(rich, timing=timing) as (writer, _):
        await reserve_behind_its_back(rich, writer.presence.name)
        assert await comes_true(lambda: reserves_of(rich), becomes={})
    assert await money(rich) == (DOLLAR_NANO, 0)


async def test_a_kept_reserve_is_shown_as_free(rich: Store) -> None:
    """To its owner, only what requests hold while there is nothing to spare counts as held."""
    async with writing(rich, timing=ALONE) as (writer, _):
        await writer.hold(make_hold())
        await writer.end(make_outcome(usage=Usage(100, 1)))
        assert (await money(rich))[1] > 0
        found = await get(rich, "acct_a")
        assert found
        assert (found.balance_nano, found.held_nano) == (DOLLAR_NANO - 1030, 0)
    await fund(rich, WHOLE_NANO, "b")
    async with writing(rich, timing=ALONE) as (writer, _):
        await writer.hold(make_hold("r2", account="b"))
        found = await get(rich, "acct_b")
        assert found
        assert found.held_nano == WHOLE_NANO
        await writer.end(make_outcome("r2", account="b"))


async def test_no_hold_is_refused_while_another_process_is_about_to_give_back(store: Store) -> None:
    """It is waited for longer than the store is asked again, and the hold is taken as soon as the credit is free."""
    await fund(store, 1000)
    asked, steps = asyncio.Event(), Steps()
    steps.actions["ledger_commit"] = [*[int] * 4, asked.set]
    timing = msgspec.structs.replace(ALONE, ask_s=0.01, ask_most_s=PATIENCE_S)
    async with writing(store, at=steps, timing=timing) as (writer, _):
        await register(store, "proc_b")
        await reserve_behind_its_back(store, "proc_b", has_spare=True)
        waiting = asyncio.create_task(writer.hold(make_hold(allowance_tokens=0)))
        await asked.wait()
        assert not waiting.done()
        await run_sql(
            store,
            "UPDATE accounts SET held_nano = 0",
            "DELETE FROM reserves",
            "DELETE FROM processes WHERE name = 'proc_b'",
        )
        assert isinstance(await waiting, HeldCredit)
        await writer.end(make_outcome())


async def reserve_behind_its_back(store: Store, process: str, *, has_spare: bool = False) -> None:

    def work(tx: Transaction) -> None:
        tx.change(Statement(text("UPDATE accounts SET held_nano = 700")), {})
        row = "INSERT INTO reserves (account_id, process, amount_nano, has_spare) VALUES ('acct_a', :of, 700, :spare)"
        tx.change(Statement(text(row)), {"of": process, "spare": has_spare})

    await store.transact(work)
