"""The writer: few commits for many moves, answers only when durable, and no end that is lost, whoever leaves."""

import asyncio

import msgspec
import pytest

from cadenza.core.records import Usage
from cadenza.store.database import Database, StoreRefused
from cadenza.store.ledger import Ended, Held, Insufficient, Repeated
from cadenza.store.writer import BATCH_MAX
from tests.store.moves import (
    Progress,
    Steps,
    comes_true,
    counted,
    end_all,
    findings,
    fund,
    hold_all,
    make_end,
    make_hold,
    mark_of,
    money,
    opened,
    queue_all,
    state_of,
    writing,
)
from tests.store.rows import DOLLAR_NANO

WHOLE_NANO = 2500  # what an ordinary hold holds


async def test_what_waits_together_is_written_together(db: Database) -> None:
    """Three hundred holds and three hundred ends cost a handful of commits, and each gets its own answer."""
    await fund(db, DOLLAR_NANO)
    names = [f"r{number}" for number in range(300)]
    async with writing(db) as (writer, metrics):
        held = await hold_all(writer, map(make_hold, names))
        ended = await end_all(writer, (make_end(name, Usage(100, number)) for number, name in enumerate(names)))
        assert counted(metrics, "ledger_commits") <= 8
    assert [answer.left_nano for answer in held if isinstance(answer, Held)] == [
        DOLLAR_NANO - WHOLE_NANO * number for number in range(1, 301)
    ]
    assert ended == [Ended(True, charged_nano=1000 + 30 * number) for number in range(300)]
    assert await money(db) == (DOLLAR_NANO - 300 * 1000 - 30 * sum(range(300)), 0)
    assert await findings(db) == []


async def test_an_answer_comes_after_the_commit(db: Database, url: str) -> None:
    """Whoever hears an answer can have another connection see the row."""
    await fund(db, DOLLAR_NANO)

    async def serve(name: str) -> None:
        await writer.hold(make_hold(name), Progress())
        assert await state_of(beside, name) == "open"
        await writer.end(make_end(name, Usage(100, 1)))
        assert await state_of(beside, name) == "settled"

    async with opened(url) as beside, writing(db) as (writer, _):
        await asyncio.gather(*(serve(f"r{number}") for number in range(20)))


async def test_each_kind_of_answer_reaches_its_caller(db: Database) -> None:
    """In one batch: held, fitted, repeated, insufficient, settled, unknown."""
    await fund(db, 2 * WHOLE_NANO + 1480)
    first, again = make_hold("r1", key=b"k" * 32), make_hold("r2", key=b"k" * 32)
    async with writing(db) as (writer, metrics):
        await writer.hold(make_hold("r0"), Progress())
        queued = await queue_all(writer, [first, again, make_hold("r3"), make_hold("r4")])
        ended = await end_all(writer, [make_end("r0", Usage(100, 50)), make_end("r9")])
        answers = await asyncio.gather(*queued)
        assert answers == [Held(50, 1480), Repeated("r1", "shown-r1"), Held(16, 0), Insufficient(0, 1480)]
        assert ended == [Ended(True, WHOLE_NANO), Ended(is_first=False)]
        assert counted(metrics, "ledger_commits") == 2


async def test_a_hold_and_its_end_of_one_batch_come_in_order(db: Database) -> None:
    """An end that is queued right behind its hold finds it."""
    await fund(db, DOLLAR_NANO)
    async with writing(db) as (writer, _):
        (held,) = await queue_all(writer, [make_hold()])
        assert await writer.end(make_end(usage=Usage(100, 1))) == Ended(True, 1030)
        assert isinstance(await held, Held)
    assert await findings(db) == []


async def test_a_hold_whose_caller_leaves_while_it_waits_is_released(db: Database) -> None:
    """Cancelled before its batch is written, the hold is taken and given back, and metered as left."""
    await fund(db, DOLLAR_NANO)
    async with writing(db) as (writer, _):
        (leaving,) = await queue_all(writer, [make_hold("r1")])
        leaving.cancel()
        await writer.hold(make_hold("r2"), Progress())
        await writer.end(make_end("r2"))
        assert await state_of(db, "r1") == "released"
    assert leaving.cancelled()
    assert (await money(db), await findings(db)) == ((DOLLAR_NANO, 0), [])


@pytest.mark.parametrize("step", ["ledger_commit", "ledger_committed"])
async def test_a_hold_whose_caller_leaves_during_its_commit_is_released(db: Database, step: str) -> None:
    """Cancelled while the batch is being written, or just when it has been, the hold is given back."""
    await fund(db, DOLLAR_NANO)
    steps = Steps()
    async with writing(db, steps) as (writer, _):
        leaving = asyncio.create_task(writer.hold(make_hold(), Progress()))
        steps.actions[step] = [leaving.cancel]
        await asyncio.wait({leaving})
        assert leaving.cancelled()
    assert await state_of(db) == "released"
    assert (await money(db), await findings(db)) == ((DOLLAR_NANO, 0), [])


async def test_a_caller_who_leaves_in_the_instant_of_the_answer_leaves_no_hold(db: Database) -> None:
    """Cancelled after the answer was given and before it was heard, the hold is given back."""
    await fund(db, DOLLAR_NANO)
    steps = Steps()
    loop = asyncio.get_running_loop()
    async with writing(db, steps) as (writer, _):
        leaving = asyncio.create_task(writer.hold(make_hold(), Progress()))
        steps.actions["ledger_committed"] = [lambda: loop.call_soon(leaving.cancel)]
        await asyncio.wait({leaving})
        assert leaving.cancelled()
    assert await state_of(db) == "released"
    assert (await money(db), await findings(db)) == ((DOLLAR_NANO, 0), [])


async def test_an_end_is_written_though_nobody_waits(db: Database) -> None:
    """Whether its caller was cancelled or never waited at all, the charge is made."""
    await fund(db, DOLLAR_NANO)
    async with writing(db) as (writer, _):
        await hold_all(writer, [make_hold("r1"), make_hold("r2")])

        async def settle() -> None:
            await writer.end(make_end("r1", Usage(100, 50)))

        leaving = asyncio.create_task(settle())
        await asyncio.sleep(0)
        leaving.cancel()
        writer.end(make_end("r2", Usage(100, 50)))
    assert (await money(db), await findings(db)) == ((DOLLAR_NANO - 2 * WHOLE_NANO, 0), [])


async def test_two_ends_of_one_request_charge_once(db: Database) -> None:
    """In one batch or in two, the first end counts."""
    await fund(db, DOLLAR_NANO)
    async with writing(db) as (writer, _):
        await writer.hold(make_hold(), Progress())
        assert await end_all(writer, [make_end(usage=Usage(100, 1)), make_end()]) == [Ended(True, 1030), Ended(False)]
        assert await writer.end(make_end(usage=Usage(100, 50))) == Ended(is_first=False)
    assert await money(db) == (DOLLAR_NANO - 1030, 0)


async def test_a_bad_hold_fails_alone(db: Database) -> None:
    """A hold that the store refuses fails with its reason; the others of its batch are taken and ended."""
    await fund(db, DOLLAR_NANO)
    async with writing(db) as (writer, metrics):
        await writer.hold(make_hold("r0"), Progress())
        stranger = msgspec.structs.replace(make_hold("bad"), key_id="key_nobody")
        queued = await queue_all(writer, [make_hold("r1"), stranger, make_hold("r2")])
        assert await writer.end(make_end("r0", Usage(100, 50))) == Ended(True, WHOLE_NANO)
        answers = await asyncio.gather(*queued, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Held, StoreRefused, Held]
        assert counted(metrics, "ledger_refused") == 1
        await end_all(writer, [make_end("r1"), make_end("r2")])
    assert (await money(db), await findings(db)) == ((DOLLAR_NANO - WHOLE_NANO, 0), [])


async def test_a_bad_end_fails_alone(db: Database) -> None:
    """An end with a number that no column can hold is refused once; it neither blocks the others nor comes again."""
    await fund(db, DOLLAR_NANO)
    async with writing(db) as (writer, metrics):
        await hold_all(writer, [make_hold("r1"), make_hold("r2")])
        absurd = msgspec.structs.replace(make_end("r1", Usage(100, 1)), duration_ms=2**63)
        bad, good = writer.end(absurd), writer.end(make_end("r2", Usage(100, 1)))
        assert await asyncio.wait_for(good, 5) == Ended(True, 1030)
        with pytest.raises(Exception, match=r"too large|out of range|invalid input"):
            await asyncio.wait_for(bad, 5)
        assert counted(metrics, "ledger_refused") == 1
        assert counted(metrics, "ledger_retries") == 0
        assert await writer.end(make_end("r1", Usage(100, 1))) == Ended(True, 1030)
    assert (await money(db), await findings(db)) == ((DOLLAR_NANO - 2060, 0), [])


async def test_what_an_account_could_not_pay_is_counted(db: Database) -> None:
    """The operator sees by how much charges fell short."""
    await fund(db, WHOLE_NANO)
    async with writing(db) as (writer, metrics):
        await writer.hold(make_hold(), Progress())
        assert await writer.end(make_end(usage=Usage(100, 60))) == Ended(True, WHOLE_NANO, short_nano=300)
        assert counted(metrics, "ledger_short_nano") == 300


async def test_what_is_delivered_is_marked_while_the_request_runs(db: Database) -> None:
    """The store learns of it within a moment, and of no more once the request has ended."""
    await fund(db, DOLLAR_NANO)
    progress = Progress()

    async def is_marked() -> bool:
        return await mark_of(db) == 7

    async with writing(db) as (writer, _):
        await writer.hold(make_hold(), progress)
        progress.delivered_tokens = 7
        assert await comes_true(is_marked)
        await writer.end(make_end(usage=Usage(100, 9)))
        progress.delivered_tokens = 40
    assert (await mark_of(db), await money(db)) == (7, (DOLLAR_NANO - 1270, 0))


async def test_stopping_writes_what_waits(db: Database) -> None:
    """Ends queued in the moment of the stop are written before it returns, more than a batch of them too."""
    await fund(db, DOLLAR_NANO)
    names = [f"r{number}" for number in range(BATCH_MAX + 44)]
    async with writing(db) as (writer, _):
        await hold_all(writer, map(make_hold, names))
        for name in names:
            writer.end(make_end(name, Usage(100, 50)))
    assert (await money(db), await findings(db)) == ((DOLLAR_NANO - len(names) * WHOLE_NANO, 0), [])


async def test_a_stop_leaves_what_still_runs_to_the_next(db: Database) -> None:
    """A hold that was not ended when its writer stopped is released by whoever starts then."""
    await fund(db, DOLLAR_NANO)
    async with writing(db) as (writer, _):
        await writer.hold(make_hold(), Progress())
    assert await state_of(db) == "open"
    async with writing(db):
        assert await state_of(db) == "released"
