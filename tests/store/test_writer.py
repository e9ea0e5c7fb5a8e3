"""The writer: few commits for many moves, answers only when durable, and no outcome lost to a cancellation."""

import asyncio
import io
import json

import msgspec
import pytest

from cadenza.core.records import Usage
from cadenza.store.ledger import Ended, Held, Insufficient, Repeated
from cadenza.store.store import Store, StoreRefused
from cadenza.store.writer import BATCH_MAX, Pace
from tests.store.moves import (
    MARKS_AT_ONCE,
    Progress,
    Steps,
    comes_true,
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
    state_of,
    writing,
)
from tests.store.rows import DOLLAR_NANO

WHOLE_NANO = 2500  # the amount of an ordinary hold
HOUR_S = 3600.0


async def test_moves_that_wait_together_share_a_commit(store: Store) -> None:
    """300 holds and 300 outcomes take at most 8 commits, and each gets its own answer."""
    await fund(store, DOLLAR_NANO)
    names = [f"r{number}" for number in range(300)]
    async with writing(store) as (writer, metrics):
        held = await hold_all(writer, map(make_hold, names))
        ended = await end_all(writer, (make_outcome(name, Usage(100, number)) for number, name in enumerate(names)))
        assert counted(metrics, "ledger_commits") <= 8
    assert [answer.left_nano for answer in held if isinstance(answer, Held)] == [
        DOLLAR_NANO - WHOLE_NANO * number for number in range(1, 301)
    ]
    assert ended == [Ended(True, charged_nano=1000 + 30 * number) for number in range(300)]
    assert await money(store) == (DOLLAR_NANO - 300 * 1000 - 30 * sum(range(300)), 0)
    assert await findings(store) == []


async def test_an_answer_comes_after_the_commit(store: Store, url: str) -> None:
    """When a caller has its answer, another connection sees the row."""
    await fund(store, DOLLAR_NANO)

    async def serve(name: str) -> None:
        await writer.hold(make_hold(name))
        assert await state_of(beside, name) == "open"
        await writer.end(make_outcome(name, Usage(100, 1)))
        assert await state_of(beside, name) == "settled"

    async with opened(url) as beside, writing(store) as (writer, _):
        await asyncio.gather(*(serve(f"r{number}") for number in range(20)))


async def test_each_kind_of_answer_reaches_its_caller(store: Store) -> None:
    """In one batch: held, partly held, repeated, insufficient, settled, unknown."""
    await fund(store, 2 * WHOLE_NANO + 1480)
    first, again = make_hold("r1", key=b"k" * 32), make_hold("r2", key=b"k" * 32)
    async with writing(store) as (writer, metrics):
        await writer.hold(make_hold("r0"))
        queued = await queue_all(writer, [first, again, make_hold("r3"), make_hold("r4")])
        ended = await end_all(writer, [make_outcome("r0", Usage(100, 50)), make_outcome("r9")])
        answers = await asyncio.gather(*queued)
        assert answers == [Held(50, 1480), Repeated("r1", "req-r1"), Held(16, 0), Insufficient(0, 1480)]
        assert ended == [Ended(True, WHOLE_NANO), Ended(is_first=False)]
        assert counted(metrics, "ledger_commits") == 2


async def test_a_hold_and_its_outcome_in_one_batch_are_in_order(store: Store) -> None:
    """An outcome that is queued right after its hold finds the hold."""
    await fund(store, DOLLAR_NANO)
    async with writing(store) as (writer, _):
        (held,) = await queue_all(writer, [make_hold()])
        assert await writer.end(make_outcome(usage=Usage(100, 1))) == Ended(True, 1030)
        assert isinstance(await held, Held)
    assert await findings(store) == []


async def test_a_hold_cancelled_in_the_queue_is_released(store: Store) -> None:
    """A hold whose caller is cancelled before its batch is written is taken and released."""
    await fund(store, DOLLAR_NANO)
    async with writing(store) as (writer, _):
        (leaving,) = await queue_all(writer, [make_hold("r1")])
        leaving.cancel()
        await writer.hold(make_hold("r2"))
        await writer.end(make_outcome("r2"))
        assert await state_of(store, "r1") == "released"
    assert leaving.cancelled()
    assert (await money(store), await findings(store)) == ((DOLLAR_NANO, 0), [])


@pytest.mark.parametrize("step", ["ledger_commit", "ledger_committed"])
async def test_a_hold_cancelled_during_its_commit_is_released(store: Store, step: str) -> None:
    """A hold whose caller is cancelled just before or just after the commit is released."""
    await fund(store, DOLLAR_NANO)
    steps = Steps()
    async with writing(store, steps) as (writer, _):
        leaving = asyncio.create_task(writer.hold(make_hold()))
        steps.actions[step] = [leaving.cancel]
        await asyncio.wait({leaving})
        assert leaving.cancelled()
    assert await state_of(store) == "released"
    assert (await money(store), await findings(store)) == ((DOLLAR_NANO, 0), [])


async def test_a_hold_cancelled_after_its_answer_is_released(store: Store) -> None:
    """A hold whose caller is cancelled after the answer was given and before it was received is released."""
    await fund(store, DOLLAR_NANO)
    steps = Steps()
    loop = asyncio.get_running_loop()
    async with writing(store, steps) as (writer, _):
        leaving = asyncio.create_task(writer.hold(make_hold()))
        steps.actions["ledger_committed"] = [lambda: loop.call_soon(leaving.cancel)]
        await asyncio.wait({leaving})
        assert leaving.cancelled()
    assert await state_of(store) == "released"
    assert (await money(store), await findings(store)) == ((DOLLAR_NANO, 0), [])


async def test_an_outcome_is_written_though_nobody_waits(store: Store) -> None:
    """The charge is made if the caller was cancelled, and if it never waited."""
    await fund(store, DOLLAR_NANO)
    async with writing(store) as (writer, _):
        await hold_all(writer, [make_hold("r1"), make_hold("r2")])

        async def settle() -> None:
            await writer.end(make_outcome("r1", Usage(100, 50)))

        leaving = asyncio.create_task(settle())
        await asyncio.sleep(0)
        leaving.cancel()
        writer.end(make_outcome("r2", Usage(100, 50)))
    assert (await money(store), await findings(store)) == ((DOLLAR_NANO - 2 * WHOLE_NANO, 0), [])


async def test_two_outcomes_of_one_request_charge_once(store: Store) -> None:
    """In one batch or in two, only the first outcome counts."""
    await fund(store, DOLLAR_NANO)
    async with writing(store) as (writer, _):
        await writer.hold(make_hold())
        assert await end_all(writer, [make_outcome(usage=Usage(100, 1)), make_outcome()]) == [
            Ended(True, 1030),
            Ended(False),
        ]
        assert await writer.end(make_outcome(usage=Usage(100, 50))) == Ended(is_first=False)
    assert await money(store) == (DOLLAR_NANO - 1030, 0)


async def test_a_bad_hold_fails_alone(store: Store) -> None:
    """A hold that the store refuses fails with its reason; the others of its batch are taken and ended."""
    await fund(store, DOLLAR_NANO)
    async with writing(store) as (writer, metrics):
        await writer.hold(make_hold("r0"))
        refused = msgspec.structs.replace(make_hold("bad"), key_id="key_nobody")
        queued = await queue_all(writer, [make_hold("r1"), refused, make_hold("r2")])
        assert await writer.end(make_outcome("r0", Usage(100, 50))) == Ended(True, WHOLE_NANO)
        answers = await asyncio.gather(*queued, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Held, StoreRefused, Held]
        assert counted(metrics, "ledger_refused") == 1
        await end_all(writer, [make_outcome("r1"), make_outcome("r2")])
    assert (await money(store), await findings(store)) == ((DOLLAR_NANO - WHOLE_NANO, 0), [])


async def test_a_bad_outcome_fails_alone(store: Store) -> None:
    """An outcome with a number too large for its column fails once; it neither blocks the others nor is retried."""
    await fund(store, DOLLAR_NANO)
    async with writing(store) as (writer, metrics):
        await hold_all(writer, [make_hold("r1"), make_hold("r2")])
        absurd = msgspec.structs.replace(make_outcome("r1", Usage(100, 1)), duration_ms=2**63)
        bad, good = writer.end(absurd), writer.end(make_outcome("r2", Usage(100, 1)))
        assert await asyncio.wait_for(good, 5) == Ended(True, 1030)
        with pytest.raises(Exception, match=r"too large|out of range|invalid input"):
            await asyncio.wait_for(bad, 5)
        assert counted(metrics, "ledger_refused") == 1
        assert counted(metrics, "ledger_retries") == 0
        assert await writer.end(make_outcome("r1", Usage(100, 1))) == Ended(True, 1030)
    assert (await money(store), await findings(store)) == ((DOLLAR_NANO - 2060, 0), [])


async def test_an_unpaid_remainder_is_counted(store: Store) -> None:
    """The metric has what was due and the account could not pay."""
    await fund(store, WHOLE_NANO)
    async with writing(store) as (writer, metrics):
        await writer.hold(make_hold())
        assert await writer.end(make_outcome(usage=Usage(100, 60))) == Ended(True, WHOLE_NANO, short_nano=300)
        assert counted(metrics, "ledger_short_nano") == 300


async def test_deliveries_are_marked_while_the_request_runs(store: Store) -> None:
    """The writer marks a tracked request by itself, and no longer once it has ended."""
    await fund(store, DOLLAR_NANO)
    progress = Progress(7)

    async def is_marked() -> bool:
        return await mark_of(store) == 7

    async with writing(store, pace=MARKS_AT_ONCE) as (writer, _):
        await writer.hold(make_hold())
        writer.track("r1", progress)
        assert await comes_true(is_marked)
        await writer.end(make_outcome(usage=Usage(100, 9)))
        progress.delivered_tokens = 40
        await writer.mark()
    assert (await mark_of(store), await money(store)) == (7, (DOLLAR_NANO - 1270, 0))


async def test_only_tracked_requests_are_marked(store: Store) -> None:
    """A request is marked once it is tracked; tracking one without an open hold has no effect."""
    await fund(store, DOLLAR_NANO)
    async with writing(store, pace=Pace(mark_after_s=0.0, mark_every_s=HOUR_S)) as (writer, _):
        await hold_all(writer, [make_hold("r1"), make_hold("r2")])
        writer.track("r1", Progress(7))
        writer.track("unknown", Progress(7))
        await writer.mark()
        assert [await mark_of(store, "r1"), await mark_of(store, "r2")] == [7, 0]
        await end_all(writer, [make_outcome("r1"), make_outcome("r2")])


@pytest.mark.parametrize(("mark_after_s", "marked_tokens"), [(0.0, 7), (HOUR_S, 0)])
async def test_short_requests_are_not_marked(store: Store, mark_after_s: float, marked_tokens: int) -> None:
    """A request is marked only when it has run for as long as the pace says."""
    await fund(store, DOLLAR_NANO)
    async with writing(store, pace=Pace(mark_after_s=mark_after_s, mark_every_s=HOUR_S)) as (writer, _):
        await writer.hold(make_hold())
        writer.track("r1", Progress(7))
        await writer.mark()
        assert await mark_of(store) == marked_tokens
        await writer.end(make_outcome())


async def test_drained_waits_for_everything_queued(store: Store) -> None:
    """After `drained`, outcomes that nobody awaited are durable, also those of a task that was still counting."""
    await fund(store, DOLLAR_NANO)
    async with writing(store) as (writer, _):
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
        assert await money(store) == (DOLLAR_NANO - 2060, 0)


async def test_the_outcomes_of_a_dead_process_are_recorded(store: Store) -> None:
    """A sweep counts the tokens that it charges, and logs a line with both ids for each hold and one with the count."""
    await fund(store, DOLLAR_NANO)
    async with writing(store, pace=Pace(mark_after_s=0.0)) as (writer, _):
        await hold_all(writer, [make_hold("r1"), make_hold("r2")])
        writer.track("r1", Progress(7))
        await writer.mark()
    log = io.StringIO()
    async with writing(store, log_to=log) as (_, metrics):
        tokens = {
            kind: metrics.registry.get_sample_value("cadenza_tokens_total", {"class_id": "forte", "kind": kind})
            for kind in ("prompt", "completion")
        }
        requests = metrics.registry.get_sample_value("cadenza_requests_total", {"endpoint": "chat", "status": "500"})
    assert (tokens, requests) == ({"prompt": 100, "completion": 7}, 2)
    total, *lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert (total["event"], total["holds"]) == ("ended the holds of a process that died", 2)
    assert {(line["request_id"], line["completion_id"], line.get("completion_tokens")) for line in lines} == {
        ("req-r1", "r1", 7),
        ("req-r2", "r2", None),
    }
    assert await findings(store) == []


async def test_stopping_writes_the_backlog(store: Store) -> None:
    """Outcomes that are queued when the writer stops are written first, even more than one batch."""
    await fund(store, DOLLAR_NANO)
    names = [f"r{number}" for number in range(BATCH_MAX + 44)]
    async with writing(store) as (writer, _):
        await hold_all(writer, map(make_hold, names))
        for name in names:
            writer.end(make_outcome(name, Usage(100, 50)))
    assert (await money(store), await findings(store)) == ((DOLLAR_NANO - len(names) * WHOLE_NANO, 0), [])


async def test_the_next_writer_releases_what_a_stopped_one_left_open(store: Store) -> None:
    """A hold that is open when its writer stops is released when another writer starts."""
    await fund(store, DOLLAR_NANO)
    async with writing(store) as (writer, _):
        await writer.hold(make_hold())
    assert await state_of(store) == "open"
    async with writing(store):
        assert await state_of(store) == "released"
