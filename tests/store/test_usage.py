"""Usage reports: groups that add up, spans to the millisecond, and exact sums on both databases."""

from typing import get_args

import msgspec
import pytest

from cadenza.core.money import Price
from cadenza.core.records import Usage
from cadenza.core.usage_report import Counters, Group, GroupBy, Report, Span
from cadenza.store import usage
from cadenza.store.database import Database
from tests.store.moves import finish, fund, make_end, make_hold, take
from tests.store.rows import DOLLAR_NANO, add_key

DAY_MS = 86_400_000
NOON_MS = 20_000 * DAY_MS + DAY_MS // 2  # 2024-10-04
ALWAYS = Span(0, 9 * 10**15)
NOTHING = Counters(0, 0, 0, 0, 0)


async def report(db: Database, span: Span = ALWAYS, group_by: GroupBy = "day", account: str = "a") -> Report:
    async with db.read() as conn:
        return await usage.report(conn, f"acct_{account}", span, group_by)


async def served(
    db: Database,
    request_id: str,
    started_at: int,
    counted: Usage | None,
    *,
    key: str = "key_a",
    class_id: str = "forte",
) -> None:
    hold = msgspec.structs.replace(make_hold(request_id, started_at=started_at), key_id=key, class_id=class_id)
    await take(db, hold)
    await finish(db, make_end(request_id, counted))


@pytest.fixture
async def busy(db: Database) -> Database:
    """Four requests of one account over two days, two keys and two classes, one that still runs, and a neighbour's."""
    await fund(db, DOLLAR_NANO)
    await fund(db, DOLLAR_NANO, "b")
    await add_key(db, "key_c")
    await served(db, "r1", NOON_MS, Usage(100, 10))
    await served(db, "r2", NOON_MS + 1, Usage(50, 5, cached_tokens=50), key="key_c")
    await served(db, "r3", NOON_MS + DAY_MS, Usage(10, 1, estimated=True), class_id="mezzo")
    await served(db, "r4", NOON_MS + DAY_MS, None)
    await take(db, make_hold("r5", started_at=NOON_MS))
    await take(db, make_hold("r6", account="b", started_at=NOON_MS))
    await finish(db, make_end("r6", Usage(1, 1), account="b"))
    return db


async def test_an_account_without_requests_has_an_empty_report(db: Database) -> None:
    """No groups, totals of zero, and the balance."""
    await fund(db, 7)
    for group_by in get_args(GroupBy):
        assert await report(db, group_by=group_by) == Report(ALWAYS, 7, NOTHING, group_by, [])


async def test_groups_add_up_to_the_totals(busy: Database) -> None:
    """By day, class and key: ended requests of the account alone, and the same totals whichever way."""
    first = Counters(2, 150, 50, 15, 1300 + 250)
    second = Counters(2, 10, 0, 1, 130)
    totals = Counters(4, 160, 50, 16, 1680)
    by_day = await report(busy)
    assert by_day.groups == [Group("2024-10-04", first), Group("2024-10-05", second)]
    by_model = await report(busy, group_by="model")
    assert by_model.groups == [
        Group("forte", Counters(3, 150, 50, 15, 1550)),
        Group("mezzo", Counters(1, 10, 0, 1, 130)),
    ]
    by_key = await report(busy, group_by="key")
    assert by_key.groups == [
        Group("key_a", Counters(3, 110, 0, 11, 1430)),
        Group("key_c", Counters(1, 50, 50, 5, 250)),
    ]
    assert [one.totals for one in (by_day, by_model, by_key)] == [totals] * 3
    assert by_day.balance_nano == DOLLAR_NANO - totals.cost_nano


async def test_a_span_is_exact_to_the_millisecond(busy: Database) -> None:
    """The start is within, the end is not; a request belongs to the moment it began."""
    requests = {
        (NOON_MS, NOON_MS + 1): 1,
        (NOON_MS, NOON_MS + 2): 2,
        (NOON_MS + 1, NOON_MS + DAY_MS): 1,
        (NOON_MS + 1, NOON_MS + DAY_MS + 1): 3,
        (0, NOON_MS): 0,
    }
    for (start_ms, end_ms), expected in requests.items():
        assert (await report(busy, Span(start_ms, end_ms))).totals.requests == expected


async def test_a_day_begins_at_midnight_utc(db: Database) -> None:
    """The last millisecond of a day and the first of the next are two days."""
    await fund(db, DOLLAR_NANO)
    midnight_ms = 20_001 * DAY_MS
    await served(db, "r1", midnight_ms - 1, Usage(1, 1))
    await served(db, "r2", midnight_ms, Usage(1, 1))
    assert [group.of for group in (await report(db)).groups] == ["2024-10-04", "2024-10-05"]


async def test_large_sums_are_exact(db: Database) -> None:
    """Beyond what a float can count, the cost is still right to the nano."""
    await fund(db, 2**61)
    price = Price(input_nano=2**53 + 1, output_nano=0)
    for number in range(5):
        await take(db, make_hold(f"r{number}", prompt_tokens=1, price=price))
        await finish(db, make_end(f"r{number}", Usage(1, 0)))
    found = await report(db)
    assert (found.totals.cost_nano, found.balance_nano) == (5 * (2**53 + 1), 2**61 - 5 * (2**53 + 1))
