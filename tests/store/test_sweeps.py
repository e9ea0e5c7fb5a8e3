"""Dead processes: what they reserved is freed once, and what was marked as delivered is charged once."""

import contextlib
import io
import json
from collections.abc import AsyncIterator

import pytest

from cadenza.core.records import Outcome, Usage
from cadenza.ledger.rules import Ended
from cadenza.store.schema import entries, marks, processes, usage
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.store import Store, StoreRefused
from tests.store.forked import Fork
from tests.store.moves import (
    ALONE,
    Progress,
    comes_true,
    cost_of,
    findings,
    finish,
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
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of, run_sql
from tests.store.spenders import process

WHOLE_NANO = 2500


def dead(completion_id: str, counted: Usage | None) -> Outcome:
    """The outcome of a request whose process died a second after its hold."""
    return Outcome(
        request_id=f"req-{completion_id}",
        completion_id=completion_id,
        account_id="acct_a",
        key_id="key_a",
        class_id="forte",
        version=3,
        endpoint="chat",
        status=500,
        usage=counted,
        duration_ms=1000,
        ended_at=NOW_MS + 1000,
    )


async def test_a_dead_process_is_freed_and_its_marks_are_charged(rich: Store) -> None:
    """Its reserve is free, a marked request is charged as an estimate, another is not; other processes keep theirs."""
    await fund(rich, DOLLAR_NANO, "b")
    for hold, name in (
        (make_hold("r1"), "proc_a"),
        (make_hold("r2"), "proc_a"),
        (make_hold("r3", account="b"), "proc_a"),
        (make_hold("r4"), "proc_b"),
    ):
        await take(rich, hold, name)
    await mark_all(rich, "r1")
    await mark_all(rich, "r4", tokens=9, process="proc_b")
    assert await sweep_process(rich) == [dead("r1", Usage(100, 7, estimated=True))]
    assert [await money(rich), await money(rich, "b")] == [(DOLLAR_NANO - 1210, WHOLE_NANO), (DOLLAR_NANO, 0)]
    assert await reserves_of(rich) == {"proc_b": WHOLE_NANO}
    assert [row.completion_id for row in await rows_of(rich, marks)] == ["r4"]
    [metered] = await rows_of(rich, usage)
    assert (metered.completion_tokens, metered.estimated, metered.cost_nano) == (7, True, 1210)
    assert (metered.status, metered.duration_ms, metered.request_id) == (500, 1000, "req-r1")
    assert [row.name for row in await rows_of(rich, processes)] == ["proc_b"]
    assert await sweep_process(rich) == []


async def test_a_mark_of_a_request_that_ended_is_not_charged(rich: Store) -> None:
    """A mark that was written after the charge is deleted, and its request is not reported again."""
    await take(rich, make_hold())
    await finish(rich, make_hold(), Usage(100, 7))
    await mark_all(rich, "r1", tokens=9)
    assert await sweep_process(rich) == []
    assert (await money(rich), await rows_of(rich, marks)) == ((DOLLAR_NANO - 1210, 0), [])


@pytest.mark.parametrize(
    ("at_ms", "duration_ms"), [(NOW_MS - 25 * 86_400_000, 25 * 86_400_000 + 1000), (2 * NOW_MS, 0)]
)
async def test_any_clock_lets_the_sweep_go_on(rich: Store, at_ms: int, duration_ms: int) -> None:
    """A request that began 25 days ago (more than 2**31 ms), or in the future after a clock went back."""
    await take(rich, make_hold(started_at=at_ms))
    await mark_all(rich, "r1", started_at=at_ms)
    assert len(await sweep_process(rich)) == 1
    assert [row.duration_ms for row in await rows_of(rich, usage)] == [duration_ms]


async def test_a_process_with_a_reserve_cannot_be_removed(rich: Store) -> None:
    """The table refuses it: nothing that refers to a process is forgotten with it."""
    await take(rich, make_hold())
    with pytest.raises(StoreRefused):
        await run_sql(rich, "DELETE FROM processes")
    assert await money(rich) == (DOLLAR_NANO, WHOLE_NANO)


async def test_the_outcomes_of_a_dead_process_are_recorded(sqlite_store: SqliteStore) -> None:
    """A sweep counts the tokens that it charges, and logs a line with both ids for each and one with the count."""
    await fund(sqlite_store, DOLLAR_NANO)
    async with writing(sqlite_store, timing=ALONE) as (writer, _):
        await hold_all(writer, [make_hold("r1"), make_hold("r2")])
        writer.track("r1", Progress(7))
        await writer.mark()
    log = io.StringIO()
    async with writing(sqlite_store, log_to=log) as (_, metrics):
        tokens = {
            kind: metrics.registry.get_sample_value("cadenza_tokens_total", {"class_id": "forte", "kind": kind})
            for kind in ("prompt", "completion")
        }
        requests = metrics.registry.get_sample_value("cadenza_requests_total", {"endpoint": "chat", "status": "500"})
    assert (tokens, requests) == ({"prompt": 100, "completion": 7}, 1)
    line, total = [json.loads(line) for line in log.getvalue().splitlines()]
    assert (total["event"], total["charged"]) == ("freed the credit of a process that died", 1)
    assert (line["request_id"], line["completion_id"], line["completion_tokens"]) == ("req-r1", "r1", 7)
    assert (await money(sqlite_store), await findings(sqlite_store)) == ((DOLLAR_NANO - 1210, 0), [])


@contextlib.asynccontextmanager
async def sweepers(url: str, count: int) -> AsyncIterator[list[Fork]]:
    """So many processes that begin to sweep at once, and go on."""
    async with contextlib.AsyncExitStack() as stack:
        running = [await stack.enter_async_context(process("sweep", url)) for _ in range(count)]
        for one in running:
            await one.hear_word("ready")
        for one in running:
            one.tell()
        yield running
        for one in running:
            await one.let_end()


@pytest.mark.slow(reason="waits until a process counts as dead")
async def test_a_killed_process_is_swept_once_and_a_living_one_never(store: Store, url: str) -> None:
    """After kill -9, two sweepers at once charge the mark once and free the rest; a living one keeps its reserve."""
    await fund(store, 100 * WHOLE_NANO)
    async with (
        process("stay", url, "marked", "7") as one,
        process("stay", url, "silent", "0") as two,
        process("stay", url, "living", "3") as three,
    ):
        for running in (one, two, three):
            await running.hear_word("ready")
            running.tell()
            await running.hear_word("held")
        assert await money(store) == (100 * WHOLE_NANO, 3 * WHOLE_NANO)
        await one.kill()
        await two.kill()
        running_before = {row.name for row in await rows_of(store, processes)}

        async def are_swept() -> bool:
            """The money first; the row of a dead process goes after its last account."""
            is_freed = await money(store) == (100 * WHOLE_NANO - 1210, WHOLE_NANO)
            return is_freed and len(running_before & {row.name for row in await rows_of(store, processes)}) == 1

        async with sweepers(url, 2):
            assert await comes_true(are_swept)
        assert [await cost_of(store, name) for name in ("marked", "silent", "living")] == [1210, None, None]
        assert len([row for row in await rows_of(store, entries) if row.kind == "charge"]) == 1
        assert (len(await rows_of(store, processes)), await findings(store)) == (1, [])


async def test_a_mark_above_the_credit_is_charged_up_to_it(store: Store) -> None:
    """After a crash, a mark above the hold takes the free credit and never makes the balance negative."""
    await fund(store, WHOLE_NANO + 10)
    await take(store, make_hold())
    await mark_all(store, "r1", tokens=500)
    assert len(await sweep_process(store)) == 1
    assert (await money(store), await findings(store)) == ((0, 0), [])


async def test_a_living_process_keeps_its_reserve(rich: Store, url: str) -> None:
    """Other processes start, sweep and stop; its request is charged as ever."""
    async with opened(url) as beside, writing(rich) as (writer, _):
        await writer.hold(make_hold())
        async with writing(beside) as (other, _):
            await other.sweep()
        assert await writer.end(make_outcome(usage=Usage(100, 1))) == Ended(1030)
    assert await money(rich) == (DOLLAR_NANO - 1030, 0)
