"""Activity: the requests of an account one by one, with filters and pages, on both databases."""

import msgspec
import pytest

from cadenza.core.activity import ActivityFilter, ActivityPage, ActivityPlace, read_filter, read_limit, read_place
from cadenza.core.records import Usage
from cadenza.core.spans import Span
from cadenza.store.store import Store
from cadenza.store.tables import activity
from tests.store.moves import finish, fund, make_hold, take
from tests.store.rows import DOLLAR_NANO, add_key

SPAN = Span(0, 10_000)


@pytest.fixture
async def busy(store: Store) -> Store:
    """Six requests of one account, of two keys and two classes, two at the same moment, and one of a neighbour."""
    await fund(store, DOLLAR_NANO)
    await fund(store, DOLLAR_NANO, "b")
    await add_key(store, "key_c")
    for number, (started_at, key, class_id) in enumerate(
        [
            (1, "key_a", "forte"),
            (2, "key_c", "forte"),
            (3, "key_a", "mezzo"),
            (3, "key_a", "forte"),
            (4, "key_c", "mezzo"),
        ]
    ):
        hold = msgspec.structs.replace(make_hold(f"r{number}", started_at=started_at), key_id=key, class_id=class_id)
        await take(store, hold)
        await finish(store, hold, Usage(10, number))
    neighbours = make_hold("r9", account="b", started_at=2)
    await take(store, neighbours)
    await finish(store, neighbours, Usage(1, 1))
    return store


async def page(store: Store, count: int = 100, place: ActivityPlace | None = None, **asked: str) -> ActivityPage:
    return await activity.read_page(store, "acct_a", read_filter(SPAN, asked), count, place)


def ids(found: ActivityPage) -> list[str]:
    return [row.completion_id for row in found.rows]


async def test_pages_join_without_gaps(busy: Store) -> None:
    """Newest first; requests of the same moment are neither lost nor repeated where a page ends between them."""
    found, place = list[str](), None
    for expected in (2, 2, 1):
        one = await page(busy, 2, place)
        assert len(one.rows) == expected
        found, place = found + ids(one), one.next
    assert place is None
    assert found == ["r4", "r3", "r2", "r1", "r0"]


async def test_filters_leave_others_out(busy: Store) -> None:
    """By key, by class, by status, and by all of them."""
    assert ids(await page(busy, key="key_c")) == ["r4", "r1"]
    assert ids(await page(busy, model="mezzo")) == ["r4", "r2"]
    assert ids(await page(busy, status="failed")) == []
    assert ids(await page(busy, key="key_c", model="forte", status="200")) == ["r1"]
    assert ids(await page(busy, key="Web chat")) == []


async def test_a_filter_looks_at_a_bounded_number(busy: Store) -> None:
    """A page may be empty and yet have a next one; together the pages have everything."""
    found, place, empty = list[str](), None, 0
    wanted = ActivityFilter(SPAN, key_id="key_c", class_id="forte")
    for _ in range(3):
        one = await activity.read_page(busy, "acct_a", wanted, 2, place, scanned=2)
        found, place, empty = found + ids(one), one.next, empty + (not one.rows)
    assert (found, place, empty) == (["r1"], None, 2)


async def test_a_request_has_what_its_owner_may_know(busy: Store) -> None:
    """Time, key, class, tokens, status, latency and cost; not the provider."""
    shown = (await page(busy, 1)).shown()
    [row] = shown["data"]
    assert (row["id"], row["key"], row["model"], row["status"], row["completion_tokens"]) == (
        "r4",
        "key_c",
        "mezzo",
        200,
        4,
    )
    assert not {"provider", "provider_cost"} & set(row)
    assert shown["next"] == "4-r4"


@pytest.mark.parametrize("cursor", ["5", "x-r1", "1-", "1-a b", "-", "9" * 30 + "-r"])
def test_a_cursor_that_is_not_one_is_refused(cursor: str) -> None:
    """The message says what to send."""
    with pytest.raises(ValueError, match="cursor: "):
        read_place(cursor)


def test_mistakes_in_a_filter_are_named() -> None:
    """A status that cannot be, and a page that is too long."""
    with pytest.raises(ValueError, match="status: "):
        read_filter(SPAN, {"status": "ok"})
    for limit in ("0", "1001", "x", "-1"):
        with pytest.raises(ValueError, match="limit: "):
            read_limit(limit)
    assert read_filter(SPAN, {}) == ActivityFilter(SPAN)
