"""Usage reports: groups that add up, spans exact to the millisecond, and exact sums on both databases."""

from typing import get_args

import msgspec
import pytest

from cadenza.core.money import Price
from cadenza.core.records import Usage
from cadenza.core.spans import Span
from cadenza.core.usage_report import Counters, GroupBy, KeyUsage, Report
from cadenza.ledger.statement import NEWEST_MAX, ReplyCost, find_reply_cost
from cadenza.store import schema
from cadenza.store.store import Store
from cadenza.store.tables import keys, usage
from tests.store.moves import finish, fund, make_hold, take
from tests.store.rows import DOLLAR_NANO, add_key, run_sql

DAY_MS = 86_400_000
NOON_MS = 20_000 * DAY_MS + DAY_MS // 2  # 2024-10-04
ALWAYS = Span(0, 9 * 10**15)
NOTHING = Counters(0, 0, 0, 0, 0)
NOTHING_BUT_ONE = Counters(1, 0, 0, 0, 0)


async def report(store: Store, span: Span = ALWAYS, group_by: GroupBy = "day", account: str = "a") -> Report:
    return await usage.report(store, f"acct_{account}", span, group_by)


async def served(
    store: Store,
    completion_id: str,
    started_at: int,
    counted: Usage | None,
    *,
    key: str = "key_a",
    class_id: str = "forte",
) -> None:
    hold = msgspec.structs.replace(make_hold(completion_id, started_at=started_at), key_id=key, class_id=class_id)
    await take(store, hold)
    await finish(store, hold, counted)


@pytest.fixture
async def busy(store: Store) -> Store:
    """Four requests of one account over two days, two keys and two classes, one that still runs, and a neighbour's."""
    await fund(store, DOLLAR_NANO)
    await fund(store, DOLLAR_NANO, "b")
    await add_key(store, "key_c")
    await served(store, "r1", NOON_MS, Usage(100, 10))
    await served(store, "r2", NOON_MS + 1, Usage(50, 5, cached_tokens=50), key="key_c")
    await served(store, "r3", NOON_MS + DAY_MS, Usage(10, 1, estimated=True), class_id="mezzo")
    await served(store, "r4", NOON_MS + DAY_MS, None)
    await take(store, make_hold("r5", started_at=NOON_MS))
    neighbours = make_hold("r6", account="b", started_at=NOON_MS)
    await take(store, neighbours)
    await finish(store, neighbours, Usage(1, 1))
    return store


async def test_the_web_application_has_a_name_in_the_report(rich: Store) -> None:
    """Grouped by key, its requests are those of "Web chat"; other keys have their ids."""
    web = await keys.look_up(rich, await rich.transact(lambda tx: keys.web_key(tx, "acct_a", NOON_MS)))
    assert web
    await served(rich, "r1", NOON_MS, Usage(100, 10), key=web.principal.key_id)
    await served(rich, "r2", NOON_MS, Usage(100, 10))
    assert [name for name, _ in (await report(rich, group_by="key")).groups] == ["Web chat", "key_a"]


async def test_an_account_without_requests_has_an_empty_report(store: Store) -> None:
    """No groups, totals of zero, and the balance."""
    await fund(store, 7)
    for group_by in get_args(GroupBy):
        assert await report(store, group_by=group_by) == Report(ALWAYS, 7, NOTHING, group_by, [])


async def test_groups_add_up_to_the_totals(busy: Store) -> None:
    """By day, class and key: ended requests of the account alone, with the same totals for each grouping."""
    first = Counters(2, 150, 50, 15, 1300 + 250)
    second = Counters(2, 10, 0, 1, 130)
    totals = Counters(4, 160, 50, 16, 1680)
    by_day = await report(busy)
    assert by_day.groups == [("2024-10-04", first), ("2024-10-05", second)]
    by_model = await report(busy, group_by="model")
    assert by_model.groups == [
        ("forte", Counters(3, 150, 50, 15, 1550)),
        ("mezzo", Counters(1, 10, 0, 1, 130)),
    ]
    by_key = await report(busy, group_by="key")
    assert by_key.groups == [
        ("key_a", Counters(3, 110, 0, 11, 1430)),
        ("key_c", Counters(1, 50, 50, 5, 250)),
    ]
    assert [one.totals for one in (by_day, by_model, by_key)] == [totals] * 3
    assert by_day.balance_nano == DOLLAR_NANO - totals.cost_nano


async def test_a_span_is_exact_to_the_millisecond(busy: Store) -> None:
    """The start is included, the end is not; a request belongs to the moment it began."""
    requests = {
        (NOON_MS, NOON_MS + 1): 1,
        (NOON_MS, NOON_MS + 2): 2,
        (NOON_MS + 1, NOON_MS + DAY_MS): 1,
        (NOON_MS + 1, NOON_MS + DAY_MS + 1): 3,
        (0, NOON_MS): 0,
    }
    for (start_ms, end_ms), expected in requests.items():
        assert (await report(busy, Span(start_ms, end_ms))).totals.requests == expected


async def test_a_day_begins_at_midnight_utc(rich: Store) -> None:
    """The last millisecond of a day and the first of the next are two days."""
    midnight_ms = 20_001 * DAY_MS
    await served(rich, "r1", midnight_ms - 1, Usage(1, 1))
    await served(rich, "r2", midnight_ms, Usage(1, 1))
    assert [name for name, _ in (await report(rich)).groups] == ["2024-10-04", "2024-10-05"]


async def test_large_sums_are_exact(store: Store) -> None:
    """A cost above what a float can hold is still exact to the nano."""
    await fund(store, 2**61)
    price = Price(input_nano=2**53 + 1, output_nano=0)
    for number in range(5):
        hold = make_hold(f"r{number}", prompt_tokens=1, price=price)
        await take(store, hold)
        await finish(store, hold, Usage(1, 0))
    found = await report(store)
    assert (found.totals.cost_nano, found.balance_nano) == (5 * (2**53 + 1), 2**61 - 5 * (2**53 + 1))


async def test_days_and_classes_add_up_too(busy: Store) -> None:
    """By day and class at once: the same requests, and what they cost in a span."""
    day = NOON_MS // DAY_MS
    found = await usage.by_day_and_class(busy, "acct_a", ALWAYS)
    assert sorted(found) == [
        (day, "forte", Counters(2, 150, 50, 15, 1550)),
        (day + 1, "forte", NOTHING_BUT_ONE),
        (day + 1, "mezzo", Counters(1, 10, 0, 1, 130)),
    ]
    assert await usage.spent(busy, "acct_a", ALWAYS) == 1680
    assert await usage.spent(busy, "acct_a", Span(NOON_MS, NOON_MS + 1)) == 1300
    assert await usage.spent(busy, "acct_b", Span(0, NOON_MS)) == 0


async def test_the_keys_that_cost_most_come_first(busy: Store) -> None:
    """With their names and prefixes, as many as are asked for, and the number of all."""
    found, in_all = await usage.by_key(busy, "acct_a", ALWAYS, 10)
    assert [(key.id, key.name, key.counters.cost_nano) for key in found] == [
        ("key_a", "a name", 1430),
        ("key_c", "a name", 250),
    ]
    assert in_all == 2
    [first], in_all = await usage.by_key(busy, "acct_a", ALWAYS, 1)
    assert (first, in_all) == (found[0], 2)
    assert isinstance(first, KeyUsage)
    assert len(first.prefix) == 12
    assert await usage.by_key(busy, "acct_a", Span(0, 1), 10) == ([], 0)


@pytest.mark.parametrize("completion_id", ["chatcmpl-none", "\0", "é"])
async def test_an_unknown_reply_has_no_cost(store: Store, completion_id: str) -> None:
    """There is no cost for a reply that is not there, whatever the text of its id."""
    await fund(store, 1)
    assert await find_reply_cost(store, "acct_a", completion_id) is None


async def test_a_cost_is_found_by_the_id_of_the_request(store: Store) -> None:
    """A client that left before the first word knows no other. Only the newest requests of its account are read."""
    await fund(store, DOLLAR_NANO)  # the rows that follow break the rules of the ledger
    await served(store, "r1", NOON_MS, Usage(100, 10))
    older = {"completion_id": "'c' || n", "request_id": "'older'", "started_at": "n"}
    names = schema.usage.c.keys()
    await run_sql(
        store,
        f"""WITH RECURSIVE many(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM many WHERE n < {NEWEST_MAX})
        INSERT INTO usage ({", ".join(names)}) SELECT {", ".join(older.get(one, one) for one in names)}
        FROM usage, many""",
    )
    found = await find_reply_cost(store, "acct_a", "req-r1")
    assert found == ReplyCost("forte", 100, 0, 10, 1300)
    assert await find_reply_cost(store, "acct_b", "req-r1") is None
