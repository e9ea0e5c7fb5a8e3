"""A process that is paused for minutes with its machine, and swept meanwhile: the store fences everything it does next.

Its clock stands still, so it believes that it is fresh: it uses keys and reserves that it has in memory.
"""

import asyncio
from functools import partial

import msgspec
import pytest
from sqlalchemy import text

from cadenza.core.money import Price
from cadenza.core.records import Cap
from cadenza.fleet import changes, presence
from cadenza.ledger.rules import Ended, HeldCredit
from cadenza.store.schema import entries, idempotency, marks, usage
from cadenza.store.statements import Statement
from cadenza.store.store import Store, StoreRefused
from cadenza.store.tables import keys
from tests.store import paused
from tests.store.aside import aside
from tests.store.forked import forked
from tests.store.moves import (
    ALONE,
    ON_POSTGRES,
    PROCESS,
    QUIET,
    cap,
    cap_of,
    come_to_wait,
    comes_true,
    findings,
    finish,
    fund,
    hold_all,
    make_hold,
    make_outcome,
    mark_all,
    money,
    opened,
    register,
    reserves_of,
    sweep_process,
    take,
    writing,
)
from tests.store.presences import LateAnswers
from tests.store.rows import DOLLAR_NANO, NOW_MS, add_key, rows_of, run_sql
from tests.store.spenders import numbers
from tests.store.test_swept import OBSERVER

FREE = Price(0, 0)

pytestmark = ON_POSTGRES

KEY = paused.KEY
WHOLE = paused.WHOLE
WHOLE_NANO = 2500
BEATING = msgspec.structs.replace(QUIET, heartbeat_every_s=0.02)
COMMAND = presence.HeartbeatBounds(fresh_s=0.0)  # a command that does not wait for the paused process


async def test_a_batch_of_a_swept_process_is_refused(rich: Store) -> None:
    """Whatever it moves: also an end that needs no reserve, and a hold that costs nothing."""
    await register(rich)
    await take(rich, make_hold("r1"))
    await sweep_process(rich)
    with pytest.raises(StoreRefused):
        await finish(rich, make_hold("r1"), WHOLE)
    await register(rich)
    assert await finish(rich, make_hold("r1"), WHOLE, is_uncertain=True) == Ended(WHOLE_NANO)


async def test_a_batch_that_waited_for_a_sweep_is_refused(store: Store, url: str) -> None:
    """It has the account as the sweep left it, and the reserve as it was before: nothing is computed from that."""
    async with aside(url) as sweep:
        await fund(store, DOLLAR_NANO)
        await register(store)
        await take(store, make_hold("r1"))
        await sweep.execute("BEGIN; UPDATE accounts SET held_nano = 0; DELETE FROM reserves")
        late = asyncio.create_task(finish(store, make_hold("r1"), WHOLE, is_uncertain=True))
        assert await come_to_wait(store, 1)
        await sweep.execute("COMMIT")
        with pytest.raises(StoreRefused):
            await late


async def test_a_process_that_is_being_swept_writes_nothing(rich: Store) -> None:
    """Between the fence and the end of its sweep, its batches are refused and its marks are not taken."""
    await register(rich)
    await take(rich, make_hold("r1", key=KEY))
    fence = text(f"UPDATE processes SET beats = {presence.FENCED} WHERE name = '{PROCESS}'")
    await rich.transact(lambda tx: tx.change(Statement(fence), {}))
    await mark_all(rich, "r1")
    assert await rows_of(rich, marks) == []
    with pytest.raises(StoreRefused):
        await finish(rich, make_hold("r1", key=KEY), WHOLE)
    await sweep_process(rich)
    assert await rows_of(rich, idempotency) == []


async def test_holds_of_several_accounts_learn_it_at_once(store: Store) -> None:
    """Batches that are refused at the same moment are all taken again under the new name: no hold fails."""
    names = "bcdefg"
    for account in names:
        await fund(store, DOLLAR_NANO, account)
    async with writing(store, timing=ALONE, bounds=QUIET) as (writer, _):
        await sweep_process(store, writer.presence.name)
        wanted = [make_hold(f"{account}{n}", account=account) for account in names for n in range(30)]
        answers = await hold_all(writer, wanted)
        assert {type(answer) for answer in answers} == {HeldCredit}
        assert [[*await reserves_of(store, account)] for account in names] == [[writer.presence.name]] * len(names)
        for hold in wanted:
            await writer.end(make_outcome(hold.completion_id, account=hold.account_id[-1]))


async def test_a_hold_is_taken_again_if_its_process_was_swept_before_the_answer(rich: Store, url: str) -> None:
    """Committed under the old name and swept since: its reserve and its key are gone, and it gets new ones."""
    beside = LateAnswers(url)
    async with writing(beside, timing=ALONE, bounds=BEATING) as (writer, _):
        name, beside.is_next_late = writer.presence.name, True
        holding = asyncio.create_task(writer.hold(make_hold("r1", key=KEY)))
        await beside.has_committed.wait()
        await sweep_process(rich, name)

        async def has_rejoined() -> bool:
            await writer.sweep()
            return writer.presence.name != name

        assert await comes_true(has_rejoined)
        beside.may_answer.set()
        assert isinstance(await holding, HeldCredit)
        assert [*await reserves_of(rich)] == [writer.presence.name]
        assert [row.process for row in await rows_of(rich, idempotency)] == [writer.presence.name]
        assert await writer.end(make_outcome("r1", WHOLE)) == Ended(WHOLE_NANO)
    await beside.close()


@pytest.mark.parametrize(
    "revoke",
    [f"UPDATE keys SET revoked_at = {NOW_MS}", f"UPDATE accounts SET suspended_at = {NOW_MS}"],
    ids=["revoked", "suspended"],
)
async def test_a_request_with_a_revoked_key_is_lost(rich: Store, revoke: str) -> None:
    """Or of a suspended account: nobody can tell whether it began before that. It is not charged, and fails."""
    async with writing(rich, timing=ALONE, bounds=QUIET) as (writer, _):
        await hold_all(writer, [make_hold("r1"), make_hold("r2")])
        await sweep_process(rich, writer.presence.name)
        await run_sql(rich, revoke)
        assert await writer.end(make_outcome("r1", WHOLE)) == Ended(is_lost=True)
        assert await writer.end(make_outcome("r2")) == Ended()
    assert await money(rich) == (DOLLAR_NANO, 0)


async def test_a_process_that_is_paused_with_its_machine_charges_nothing_twice(store: Store, url: str) -> None:
    """Another process sweeps it, serves a retry and sees a key revoked. When it goes on, the store decides."""
    async with opened(url) as beside:
        await fund(store, DOLLAR_NANO)
        await fund(store, DOLLAR_NANO, "b")
        digest = await add_key(store, "key_kept", account_id="acct_b")
        timing = msgspec.structs.replace(ALONE, sweep_every_s=0.05)
        async with forked(paused.main, url, digest.hex()) as frozen:
            await frozen.hear_word("held")
            frozen.pause()
            async with writing(beside, timing=timing, bounds=OBSERVER) as (writer, _):

                async def is_swept() -> bool:
                    return (await money(store), await money(store, "b")) == ((DOLLAR_NANO, 0), (DOLLAR_NANO, 0))

                assert await comes_true(is_swept)
                for key_id in ("key_kept", "key_b"):
                    await changes.make_change(store, partial(keys.revoke, key_id=key_id, now_ms=NOW_MS), COMMAND)
                assert isinstance(await writer.hold(make_hold("retry", key=KEY)), HeldCredit)
                assert await writer.end(make_outcome("retry", WHOLE)) == Ended(WHOLE_NANO)
            frozen.resume()
            frozen.tell()
            # It found the key that it had kept. Of its requests only the one without any key that was lost is charged.
            assert await numbers(frozen) == [1, *(WHOLE_NANO, 0, 0, 0), *(0, 1, 1, 1)]
            await frozen.let_end()
        assert (await money(store), await money(store, "b")) == ((DOLLAR_NANO - 2 * WHOLE_NANO, 0), (DOLLAR_NANO, 0))
        charges = [row.completion_id for row in await rows_of(store, entries) if row.kind == "charge"]
        assert (charges, await findings(store)) == (["retry", "plain"], [])
        assert {row.completion_id for row in await rows_of(store, usage) if row.source == "lost"} == {
            "keyed",
            "b1",
            "b2",
        }


async def test_no_key_is_held_under_a_name_that_was_swept(rich: Store) -> None:
    """A request that costs nothing reserves nothing: its key belongs to a process that is registered all the same."""
    async with writing(rich, timing=ALONE, bounds=QUIET) as (writer, _):
        swept = writer.presence.name
        await sweep_process(rich, swept)
        assert isinstance(await writer.hold(make_hold("r1", key=KEY, price=FREE)), HeldCredit)
        [row] = await rows_of(rich, idempotency)
        assert row.process == writer.presence.name != swept
        assert await writer.end(make_outcome("r1", WHOLE)) == Ended()


async def test_a_cap_that_was_set_meanwhile_is_not_passed(rich: Store) -> None:
    """A late request may have begun after the cap was set: it pays what the cap leaves, and is lost."""
    async with writing(rich, timing=ALONE, bounds=QUIET) as (writer, _):
        await writer.hold(make_hold("r1"))
        await sweep_process(rich, writer.presence.name)
        await cap(rich, Cap(1000))
        assert await writer.end(make_outcome("r1", WHOLE)) == Ended(1000, 1500, is_lost=True)
    figures = await cap_of(rich)
    assert (figures.spent_nano, figures.excused_nano, await findings(rich)) == (1000, 0, [])
