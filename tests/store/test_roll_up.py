"""Metering rows that are rolled up by day, on both databases: no report changes, and the audit sees each mistake."""

from typing import Any, get_args

import msgspec
import pytest

from cadenza.control.money.margins import read_margin
from cadenza.control.money.months import check_all, close_month, report_month, verify_month
from cadenza.control.money.refunds import refund_request
from cadenza.control.money.statement import check_ledger, export_statement, key_overview, sum_entries, usage_overview
from cadenza.core.margin import MARGIN_GROUPS
from cadenza.core.money import Price
from cadenza.core.records import COMMAND_LINE, SEARCH, Cap, Usage
from cadenza.core.spans import ALWAYS, DAY_MS, Span, month_span
from cadenza.core.usage_report import GroupBy
from cadenza.ledger import credit
from cadenza.ledger.roll_up import accounts_due, oldest_request, roll_up
from cadenza.store.schema import usage, usage_days
from cadenza.store.store import Store
from cadenza.store.tables import margins
from cadenza.store.tables.usage import by_key, report
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
from tests.store.rows import DOLLAR_NANO, add_key, rows_of, run_sql
from tests.store.test_months import DECEMBER, LATER, NOVEMBER, OCTOBER

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
    "UPDATE usage SET provider_cost_nano = 400, version = 2 WHERE completion_id IN ('r0', 'r6')",
    "UPDATE usage SET model = 'other' WHERE completion_id = 'r1'",
)


@pytest.fixture
async def used(store: Store) -> Store:
    """Three months of two accounts, with a capped key, a refund and a charge that was corrected late."""
    for account in ("a", "b"):
        await fund(store, 0, account)
        await store.transact(lambda tx, id_=f"acct_{account}": credit.grant(tx, id_, DOLLAR_NANO, "", OCTOBER - DAY_MS))  # type: ignore[misc]
    await add_key(store, "key_c")
    for number, (account, at_ms, key_id, class_id, price, counted, status) in enumerate(REQUESTS):
        hold = make_hold(f"r{number}", account=account, started_at=at_ms, key_id=key_id)
        hold = msgspec.structs.replace(hold, class_id=class_id, price=price or hold.price)
        await take(store, hold)
        await finish(store, hold, counted, status=status)
    await run_sql(store, *CHANGES)
    async with writing(store, timing=ALONE, bounds=QUIET) as (writer, _):
        await writer.hold(make_hold("late"))
        writer.track("late", Progress(7))
        await writer.mark()
        await sweep_process(store, writer.presence.name)
        await writer.end(make_outcome("late", Usage(100, 7, cached_tokens=90)))
    await refund_request(store, "r0", None, "sorry", COMMAND_LINE, DECEMBER)
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
                found[f"sums {account_id} {span}"] = await sum_entries(store, account_id, span)
        for name in MARGIN_GROUPS:
            found[f"margin {name} {span}"] = await read_margin(store, span, name)
        found[f"bill {span}"] = await margins.read_counts(store, "acme", span)
        found[f"keys {span}"] = await by_key(store, "acct_a", span, 10)
    span = Span(OCTOBER - OCTOBER % DAY_MS, BEFORE_MS)
    found["overview"] = await usage_overview(store, "acct_a", span)
    found["key"] = await key_overview(store, "acct_a", "key_c", span)
    found["statement"] = [
        (one.id, one.amount_nano, one.balance_nano) async for one in export_statement(store, "acct_a")
    ]
    for month in ("2026-10", "2026-11", "2026-12", "2027-01"):
        found[month] = await report_month(store, month, LATER)
    return found


async def roll_up_all(store: Store, before_ms: int = BEFORE_MS, count: int = 2) -> int:
    rolled = 0
    for account_id in await accounts_due(store, before_ms):
        while done := await store.transact(lambda tx, id_=account_id: roll_up(tx, id_, before_ms, count)):  # type: ignore[misc]
            rolled += done
    return rolled


async def test_no_sum_changes(used: Store) -> None:
    """Every report, cap, closed month and check is the same before and after, in slices that split days."""
    closed = await close_month(used, "2026-10", COMMAND_LINE, LATER)
    before, oldest = await read_reports(used), await oldest_request(used)
    assert oldest == OCTOBER
    assert await roll_up_all(used) == len(REQUESTS) + 1
    assert await rows_of(used, usage) == []
    assert sum([row.requests for row in await rows_of(used, usage_days)]) == len(REQUESTS) + 1
    after = await read_reports(used)
    assert {name: (before[name], found) for name, found in after.items() if found != before[name]} == {}
    assert [(await one(used)).findings for one in (check_ledger, check_all)] == [[], []]
    assert (await verify_month(used, "2026-10")).problems == []
    assert (await close_month(used, "2026-11", COMMAND_LINE, LATER)).opening_nano == closed.closing_nano
    assert [(await one(used)).findings for one in (check_ledger, check_all)] == [[], []]
    assert (await accounts_due(used, BEFORE_MS), await oldest_request(used)) == ([], None)
    await cap(used, None)
    await cap(used, Cap(DOLLAR_NANO, "total"))
    assert await cap_of(used) == before["cap"], "a new cap counts the days too"


async def test_what_was_rolled_up_can_be_refunded(used: Store) -> None:
    """A refund follows from the entries."""
    await roll_up_all(used, MIDNIGHT)
    assert {row.completion_id for row in await rows_of(used, usage)} == {"late", "r8"}
    done = await refund_request(used, "r6", None, "sorry", COMMAND_LINE, LATER)
    assert done.amount_nano == 100 * 7 + 10 * 11
    assert (await check_all(used)).findings == []


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE usage_days SET charged_nano = charged_nano + 1 WHERE class_id = 'mezzo'",
        "UPDATE usage_days SET requests = requests + 1 WHERE class_id = 'mezzo'",
        "UPDATE usage_days SET cost_nano = cost_nano + 1, short_nano = -1 WHERE class_id = 'mezzo'",
        "UPDATE usage_days SET prompt_tokens = prompt_tokens + 1 WHERE class_id = 'mezzo'",
        "DELETE FROM usage_days WHERE class_id = 'mezzo'",
    ],
)
async def test_the_check_finds_a_changed_day(used: Store, change: str) -> None:
    """A day that says more, or less, than its charges, or that is gone."""
    await roll_up_all(used)
    await run_sql(used, change)
    assert (await check_all(used)).findings


async def test_requests_at_other_prices_are_not_added_up(store: Store) -> None:
    """Of one day, key and class: each price has its own row, also if only that of cached tokens differs or has none."""
    await fund(store, DOLLAR_NANO)
    prices = [Price(10, 30, 2), Price(10, 30, 3), Price(10, 30), Price(10, 31, 2), Price(11, 30, 2)]
    for number, price in enumerate(prices * 2):
        hold = msgspec.structs.replace(make_hold(f"r{number}", started_at=OCTOBER + number), price=price)
        await take(store, hold)
        await finish(store, hold, Usage(100, 7, cached_tokens=90))
    assert await roll_up_all(store, count=100) == len(prices) * 2
    found = [
        (Price(row.input_nano, row.output_nano, row.cached_input_nano), row.requests, row.cost_nano)
        for row in await rows_of(store, usage_days)
    ]
    expected = [(price, 2, 2 * price.charge(Usage(100, 7, cached_tokens=90))) for price in prices]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert (await check_all(store)).findings == []
