"""The sums by day, on both databases: reports equal what the metering rows add up to, with these or without them."""

import io
import itertools
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest

from cadenza.control.money.refunds import refund_request
from cadenza.control.money.statement import check_ledger, export_statement, key_overview, sum_entries, usage_overview
from cadenza.control.retention_keeper import RetentionKeeper
from cadenza.core.money import Price
from cadenza.core.records import COMMAND_LINE, SEARCH, Cap, Owner, Usage
from cadenza.core.retention_limits import RetentionLimits
from cadenza.core.spans import ALWAYS, DAY_MS, Span, month_span
from cadenza.core.usage_report import Counters, GroupBy, day_name, sum_counters
from cadenza.ledger import credit
from cadenza.observe import make_log
from cadenza.parts.books import margin_rows as margins
from cadenza.parts.books.closing import close_month
from cadenza.parts.books.margin import MARGIN_GROUPS
from cadenza.parts.books.months import report_month
from cadenza.parts.books.proof import check_all, verify_month
from cadenza.store.schema import usage
from cadenza.store.store import Store
from cadenza.store.tables.metered import first_id
from cadenza.store.tables.usage import by_key, report
from tests.parts.books.test_months import DECEMBER, LATER, NOVEMBER, OCTOBER
from tests.store.moves import (
    ALONE,
    QUIET,
    Progress,
    cap,
    cap_of,
    finish,
    fund,
    make_hold,
    make_outcome,
    sweep_process,
    take,
    writing,
)
from tests.store.rows import DOLLAR_NANO, add_key, rows_of, run_sql, sum_up

OWNER = Owner("acct_a", "acct_a@example.org")
BEFORE_MS = month_span("2027-01").end_ms
MIDNIGHT = month_span("2026-11").end_ms
OTHER = Price(7, 11)
REQUESTS = (  # the account, when it began, its key, class, price, counts and status
    ("a", OCTOBER, "key_a", "forte", None, Usage(100, 10), 200),
    ("a", OCTOBER + 1, "key_a", "forte", None, Usage(90, 10, cached_tokens=80), 200),
    ("a", OCTOBER + 2, "key_c", "mezzo", OTHER, Usage(50, 5, estimated=True), 499),
    ("a", OCTOBER + 3, "key_a", SEARCH, None, Usage(1, 0), 200),
    ("a", OCTOBER + 4, "key_a", "forte", None, None, 502),
    ("b", OCTOBER, "key_b", "forte", None, Usage(100, 10), 200),
    ("a", NOVEMBER, "key_a", "forte", OTHER, Usage(100, 10), 200),
    ("a", MIDNIGHT - 5, "key_a", "forte", None, Usage(60, 6), 200),  # it is charged in December
    ("a", DECEMBER, "key_c", "forte", None, Usage(10, 1), 200),
)
CHANGES = (
    "UPDATE usage SET provider_cost_nano = 400, version = 2 WHERE completion_id LIKE '%r0' OR completion_id LIKE '%r6'",
    "UPDATE usage SET model = 'other' WHERE completion_id LIKE '%r1'",
)


def completion_id(number: int) -> str:
    return f"{first_id(REQUESTS[number][1])}r{number}"


@pytest.fixture
async def used(store: Store) -> Store:
    """Three months of two accounts, with a capped key, a refund and a charge that was corrected late."""
    for account in ("a", "b"):
        await fund(store, 0, account)
        await store.transact(lambda tx, id_=f"acct_{account}": credit.grant(tx, id_, DOLLAR_NANO, "", OCTOBER - DAY_MS))  # type: ignore[misc]
    await add_key(store, "key_c")
    for number, (account, at_ms, key_id, class_id, price, counted, status) in enumerate(REQUESTS):
        hold = make_hold(completion_id(number), account=account, started_at=at_ms, key_id=key_id)
        hold = msgspec.structs.replace(hold, class_id=class_id, price=price or hold.price)
        await take(store, hold)
        await finish(store, hold, counted, status=status)
    await run_sql(store, *CHANGES)
    await store.transact(sum_up)
    async with writing(store, timing=ALONE, bounds=QUIET) as (writer, _):
        await writer.hold(make_hold("late"))
        writer.track("late", Progress(7))
        await writer.mark()
        await sweep_process(store, writer.presence.name)
        await writer.end(make_outcome("late", Usage(100, 7, cached_tokens=90)))
    await refund_request(store, completion_id(0), None, "sorry", COMMAND_LINE, DECEMBER)
    await cap(store, Cap(DOLLAR_NANO, "total"))
    return store


async def read_reports(store: Store) -> dict[str, Any]:
    """Everything that adds up metering rows or entries."""
    found: dict[str, Any] = {"cap": await cap_of(store)}
    for span in (ALWAYS, *map(month_span, ("2026-10", "2026-11", "2026-12"))):
        for account_id in ("acct_a", "acct_b", None):
            for group in get_args(GroupBy):
                found[f"{group} {account_id} {span}"] = await report(store, account_id, span, group)
            if account_id:
                found[f"sums {account_id} {span}"] = await sum_entries(store, Owner(account_id, ""), span)
        for name in MARGIN_GROUPS:
            found[f"margin {name} {span}"] = await margins.read_margins(store, span, name)
        found[f"bill {span}"] = await margins.read_counts(store, "acme", span)
        found[f"keys {span}"] = await by_key(store, "acct_a", span, 10)
    span = Span(OCTOBER - OCTOBER % DAY_MS, BEFORE_MS)
    found["overview"] = await usage_overview(store, OWNER, span)
    found["key"] = await key_overview(store, OWNER, "key_c", span)
    found["statement"] = [(one.id, one.amount_nano, one.balance_nano) async for one in export_statement(store, OWNER)]
    for month in ("2026-10", "2026-11", "2026-12", "2027-01"):
        found[month] = await report_month(store, month, LATER)
    return found


async def remove_all(store: Store, before_ms: int = BEFORE_MS) -> None:
    """Remove the metering rows from before this time, as the limit of [retention] does."""
    days = 32
    limits = RetentionLimits(usage_days=days)
    done = await RetentionKeeper(store, limits, make_log(io.StringIO()), pause_s=0.0).poll(before_ms + days * DAY_MS)
    assert done["usage"]


async def read_rows(store: Store, account_id: str, span: Span, name: Callable[[Any], str]) -> dict[str, Counters]:
    """What the metering rows of a span add up to, by name: the definition of a report."""
    found: dict[str, list[Counters]] = {}
    for row in await rows_of(store, usage):
        if row.account_id == account_id and span.start_ms <= row.started_at < span.end_ms:
            prompt_tokens = 0 if row.class_id == SEARCH else row.prompt_tokens
            counters = Counters(1, prompt_tokens, row.cached_tokens, row.completion_tokens, row.cost_nano)
            found.setdefault(name(row), []).append(counters)
    return {name: sum_counters(many) for name, many in found.items()}


async def test_reports_are_what_the_metering_rows_add_up_to(used: Store) -> None:
    """In each span that begins or ends before, at or after a request, or with a day, by each group."""
    times = {at_ms + more for _, at_ms, *_ in REQUESTS for more in (-1, 0, 1)}
    times |= {at_ms - at_ms % DAY_MS for at_ms in times} | {0, LATER}
    names: dict[GroupBy, Callable[[Any], str]] = {
        "day": lambda row: day_name(row.started_at // DAY_MS),
        "model": lambda row: row.class_id,
        "key": lambda row: row.key_id,
    }
    for start_ms, end_ms in itertools.combinations(sorted(times), 2):
        span = Span(start_ms, end_ms)
        for group, name in names.items():
            found = await report(used, "acct_a", span, group)
            assert dict(found.groups) == await read_rows(used, "acct_a", span, name), (group, span)
        everyone = (await report(used, None, span, "model")).totals
        assert everyone == sum_counters([(await report(used, f"acct_{one}", span, "day")).totals for one in "ab"]), span
    assert (await check_all(used)).findings == []


async def test_no_sum_changes_when_metering_rows_are_removed(used: Store) -> None:
    """Every report of whole days, cap, closed month and check is the same before and after."""
    closed = await close_month(used, "2026-10", COMMAND_LINE, LATER)
    before = await read_reports(used)
    await remove_all(used)
    assert [row.completion_id for row in await rows_of(used, usage)] == ["late"]
    after = await read_reports(used)
    assert {name: (before[name], found) for name, found in after.items() if found != before[name]} == {}
    assert [(await one(used)).findings for one in (check_ledger, check_all)] == [[], []]
    assert (await verify_month(used, "2026-10")).problems == []
    assert (await close_month(used, "2026-11", COMMAND_LINE, LATER)).opening_nano == closed.closing_nano
    assert [(await one(used)).findings for one in (check_ledger, check_all)] == [[], []]
    await cap(used, None)
    await cap(used, Cap(DOLLAR_NANO, "total"))
    assert await cap_of(used) == before["cap"], "a new cap counts the days too"


async def test_a_request_without_its_metering_row_can_be_refunded(used: Store) -> None:
    """A refund follows from the entries."""
    await remove_all(used, MIDNIGHT)
    done = await refund_request(used, completion_id(6), None, "sorry", COMMAND_LINE, LATER)
    assert done.amount_nano == 100 * 7 + 10 * 11
    assert (await check_all(used)).findings == []


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE usage_days SET cost_nano = cost_nano + 1 WHERE class_id = 'mezzo'",
        "DELETE FROM usage_days WHERE class_id = 'mezzo'",
        "UPDATE usage_days SET account_id = 'acct_b' WHERE class_id = 'mezzo'",
    ],
)
async def test_the_check_finds_a_changed_day_without_metering_rows(used: Store, change: str) -> None:
    """A day that cost more, or less, than was charged, or that is gone."""
    await remove_all(used)
    await run_sql(used, change)
    assert (await check_all(used)).findings
