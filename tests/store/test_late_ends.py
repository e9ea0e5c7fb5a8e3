"""Requests that end after their process was swept: of those with one idempotency key at most one is charged, whole.

A charge by the sweep that was too high is corrected, once, in the balance, in the cap and in the metering row.
"""

import io
import itertools
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from cadenza.control.money.refunds import refund_request
from cadenza.core.records import COMMAND_LINE, Cap, Usage
from cadenza.ledger.rows import CORRECTED
from cadenza.ledger.rules import Ended, HeldCredit, Repeated
from cadenza.store.schema import entries, idempotency, usage
from cadenza.store.store import Store
from tests.store.moves import (
    ALONE,
    QUIET,
    Progress,
    cap,
    cap_of,
    counted,
    findings,
    finish,
    fund,
    make_hold,
    make_outcome,
    mark_all,
    money,
    register,
    sweep_process,
    take,
    writing,
)
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of

KEY = b"k" * 32
FIRST = make_hold("r1", key=KEY)
RETRY = make_hold("r2", key=KEY)
WHOLE = Usage(100, 50)
LOST = Ended(is_lost=True)
MARKED_NANO = 100 * 10 + 7 * 30  # by the sweep: no token of the prompt is cached
CACHED = Usage(100, 7, cached_tokens=90)
CACHED_NANO = 10 * 10 + 90 * 2 + 7 * 30


@pytest.fixture
async def rich(rich: Store) -> AsyncIterator[Store]:
    """An account with one dollar; at the end nothing is held."""
    yield rich
    assert (await money(rich))[1] == 0


async def charged(store: Store) -> dict[str, int]:
    """What each request was charged."""
    return {row.completion_id: -row.amount_nano for row in await rows_of(store, entries) if row.kind == "charge"}


async def test_a_request_whose_key_was_freed_is_lost(rich: Store) -> None:
    """Nobody has used the key since: the late end is not charged, is counted and logged, and the key stays free."""
    log = io.StringIO()
    async with writing(rich, log_to=log, timing=ALONE, bounds=QUIET) as (writer, metrics):
        await writer.hold(FIRST)
        await sweep_process(rich, writer.presence.name)
        assert await writer.end(make_outcome("r1", WHOLE)) == LOST
        assert (counted(metrics, "ledger_lost"), counted(metrics, "ledger_short_nano")) == (1, 0)
        assert isinstance(await writer.hold(RETRY), HeldCredit)
        assert await writer.end(make_outcome("r2", WHOLE)) == Ended(2500)
    assert await charged(rich) == {"r2": 2500}
    assert "not charged in full" in log.getvalue()
    assert metrics.registry.get_sample_value("cadenza_requests_total", {"endpoint": "chat", "status": "500"}) == 1
    assert [row.status for row in await rows_of(rich, usage) if row.source == "lost"] == [500]


async def test_a_request_that_will_end_late_is_not_marked(rich: Store) -> None:
    """If its process is swept again, it is not charged by a mark: a retry with its key may have been charged."""
    async with writing(rich, timing=ALONE, bounds=QUIET) as (writer, _):
        await writer.hold(FIRST)
        writer.track("r1", Progress(7))
        await sweep_process(rich, writer.presence.name)
        assert isinstance(await writer.hold(RETRY), HeldCredit)
        assert await writer.end(make_outcome("r2", WHOLE)) == Ended(2500)
        await writer.mark()
        await sweep_process(rich, writer.presence.name)
        assert await writer.end(make_outcome("r1", WHOLE)) == LOST
    assert await charged(rich) == {"r2": 2500}


async def test_ends_that_wait_while_the_process_begins_again_are_late_too(rich: Store) -> None:
    """Queued under the old name, written under the new one: the end whose key was freed is lost all the same."""
    await fund(rich, DOLLAR_NANO, "b")
    async with writing(rich, timing=ALONE, bounds=QUIET) as (writer, _):
        await writer.hold(FIRST)
        await writer.hold(make_hold("b1", account="b"))
        await sweep_process(rich, writer.presence.name)
        discovering = writer.hold(make_hold("b2", account="b", key=KEY))
        ending = writer.end(make_outcome("r1", WHOLE))
        assert isinstance(await discovering, HeldCredit)
        assert await ending == LOST
        for name in ("b1", "b2"):
            await writer.end(make_outcome(name, account="b"))
    assert await charged(rich) == {}


ORDERS = [
    order
    for order in itertools.permutations(("sweep", "retry", "end of the retry", "end of the first"))
    if order.index("retry") < order.index("end of the retry")
]


@pytest.mark.parametrize("is_marked", [False, True], ids=["unmarked", "marked"])
async def test_in_any_order_at_most_one_request_of_a_key_is_charged_and_whole(rich: Store, is_marked: bool) -> None:
    """The sweep, a retry in another process, its end and the end of the first request, in all twelve orders."""
    for name in ("proc_retry", "proc_new"):
        await register(rich, name)
    for number, (order, first_count) in enumerate(itertools.product(ORDERS, (WHOLE, CACHED, None))):
        key = bytes([number]) * 32
        first, retry = make_hold(f"{number}-first", key=key), make_hold(f"{number}-retry", key=key)
        whole, has_retry = list[str](), False
        await take(rich, first)
        if is_marked:
            await mark_all(rich, first.completion_id)
        for step in order:
            match step:
                case "sweep":
                    await sweep_process(rich)
                case "retry":
                    has_retry = isinstance(await take(rich, retry, "proc_retry"), HeldCredit)
                case "end of the retry" if has_retry:
                    if not (await finish(rich, retry, WHOLE, process="proc_retry")).is_lost:
                        whole.append("retry")
                case "end of the first":
                    is_late = order.index(step) > order.index("sweep")
                    process = "proc_new" if is_late else "proc_a"
                    ended = await finish(rich, first, first_count, process=process, is_uncertain=is_late)
                    if first_count and not ended.is_lost:
                        whole.append("first")
        assert len(whole) <= 1, order
        assert await findings(rich) == [], order
    by_key = Counter(row.idempotency_digest for row in await rows_of(rich, usage) if row.cost_nano)
    assert set(by_key.values()) == {1}


async def test_an_overcharge_of_the_sweep_is_corrected(rich: Store) -> None:
    """The late end knows the cached tokens: the difference comes back in an entry that names the request, once."""
    async with writing(rich, timing=ALONE, bounds=QUIET) as (writer, metrics):
        await writer.hold(make_hold("r1"))
        writer.track("r1", Progress(7))
        await writer.mark()
        await sweep_process(rich, writer.presence.name)
        assert (await money(rich))[0] == DOLLAR_NANO - MARKED_NANO
        assert await writer.end(make_outcome("r1", CACHED)) == Ended(
            CACHED_NANO, corrected_nano=MARKED_NANO - CACHED_NANO
        )
        assert counted(metrics, "ledger_lost") == 0
    assert (await money(rich))[0] == DOLLAR_NANO - CACHED_NANO
    [_, charge, correction] = await rows_of(rich, entries)
    assert (charge.kind, charge.amount_nano, charge.completion_id) == ("charge", -MARKED_NANO, "r1")
    assert (correction.kind, correction.amount_nano) == ("correction", MARKED_NANO - CACHED_NANO)
    assert (correction.completion_id, correction.source) == ("r1", "late-end:r1")
    assert correction.note == CORRECTED
    [row] = await rows_of(rich, usage)
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.cost_nano) == (100, 90, 7, CACHED_NANO)
    assert (row.status, row.provider, row.estimated, row.source) == (200, "acme", False, "request")


async def test_a_correction_is_made_once(rich: Store) -> None:
    """Written again because the answer of the store was lost, it changes nothing more."""
    await take(rich, make_hold("r1"))
    await mark_all(rich, "r1")
    await sweep_process(rich)
    await register(rich)
    for corrected_nano in (MARKED_NANO - CACHED_NANO, 0):
        assert await finish(rich, make_hold("r1"), CACHED, is_uncertain=True) == Ended(
            CACHED_NANO, is_repeated=not corrected_nano, corrected_nano=corrected_nano
        )
    assert (await money(rich))[0] == DOLLAR_NANO - CACHED_NANO


@pytest.mark.parametrize("refunded_nano", [CACHED_NANO, CACHED_NANO + 1])
async def test_a_refund_and_a_correction_give_back_no_more_than_was_charged(rich: Store, refunded_nano: int) -> None:
    """After a refund of more than the final cost, nothing is corrected."""
    await take(rich, make_hold("r1"))
    await mark_all(rich, "r1")
    await sweep_process(rich)
    await register(rich)
    await refund_request(rich, "r1", refunded_nano, "a bad answer", COMMAND_LINE, NOW_MS)
    cost_nano = MARKED_NANO if refunded_nano > CACHED_NANO else CACHED_NANO
    ended = await finish(rich, make_hold("r1"), CACHED, is_uncertain=True)
    assert (ended.charged_nano, ended.corrected_nano) == (cost_nano, MARKED_NANO - cost_nano)
    assert (await money(rich))[0] == DOLLAR_NANO - cost_nano + refunded_nano


async def users_of_keys(store: Store) -> list[str]:
    return [row.completion_id for row in await rows_of(store, idempotency)]


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_request_whose_key_is_used_by_a_retry_is_lost(rich: Store, is_over: bool) -> None:
    """The retry runs or has ended, in another process: it alone is charged, and the key stays its own."""
    async with writing(rich, timing=ALONE, bounds=QUIET) as (writer, _):
        await writer.hold(FIRST)
        await sweep_process(rich, writer.presence.name)
        assert isinstance(await take(rich, RETRY), HeldCredit)
        if is_over:
            await finish(rich, RETRY, WHOLE)
        assert await writer.end(make_outcome("r1", WHOLE)) == LOST
        if not is_over:
            assert await finish(rich, RETRY, WHOLE) == Ended(2500)
        assert await writer.hold(make_hold("r3", key=KEY)) == Repeated("r2", "req-r2")
    assert (await charged(rich), await users_of_keys(rich)) == ({"r2": 2500}, ["r2"])


async def test_a_retry_in_the_same_process_under_a_new_name_is_the_one_that_counts(rich: Store) -> None:
    """The process is swept and begins again; the retry with the freed key is its own, and only the retry is charged."""
    async with writing(rich, timing=ALONE, bounds=QUIET) as (writer, _):
        await writer.hold(FIRST)
        await sweep_process(rich, writer.presence.name)
        assert isinstance(await writer.hold(RETRY), HeldCredit)
        assert await writer.end(make_outcome("r1", WHOLE)) == LOST
        assert await writer.end(make_outcome("r2", WHOLE)) == Ended(2500)
    assert await charged(rich) == {"r2": 2500}


async def test_a_marked_request_keeps_its_key(rich: Store) -> None:
    """The sweep charged its mark: a retry is refused, and the late end is whole for the same cost or less."""
    async with writing(rich, timing=ALONE, bounds=QUIET) as (writer, _):
        await writer.hold(FIRST)
        writer.track("r1", Progress(7))
        await writer.mark()
        await sweep_process(rich, writer.presence.name)
        assert await take(rich, RETRY) == Repeated("r1", "req-r1")
        assert await writer.end(make_outcome("r1", Usage(100, 7))) == Ended(MARKED_NANO, is_repeated=True)
        assert await take(rich, RETRY) == Repeated("r1", "req-r1")
    assert await charged(rich) == {"r1": MARKED_NANO}
    await sweep_process(rich)


async def test_a_correction_gives_back_to_the_cap(rich: Store) -> None:
    """What the key has spent of its cap is what its request cost in the end."""
    await cap(rich, Cap(5000))
    async with writing(rich, timing=ALONE, bounds=QUIET) as (writer, _):
        await writer.hold(make_hold("r1", is_capped=True))
        writer.track("r1", Progress(7))
        await writer.mark()
        await sweep_process(rich, writer.presence.name)
        await writer.end(make_outcome("r1", CACHED))
        spent = await cap_of(rich)
        assert (spent.spent_nano, spent.held_nano) == (CACHED_NANO, 0)
