"""Reading usage at the edge: the query, the scope and the report of the asking account."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cadenza.core.records import Route, Usage
from cadenza.gateway.api import serve_api
from cadenza.gateway.compose import Character
from cadenza.gateway.gateway import Gateway
from cadenza.routing.catalogue import Catalogue
from cadenza.routing.dispatch import Dispatcher
from tests.unit.gateway.books import FORTE, KEY, LIMITS, NOW_MS, Books, open_books
from tests.unit.gateway.clients import Client

DAY_MS = 24 * 60 * 60 * 1000
CREDIT_NANO = 5_000_000_000
ALL = b"start=0&end=2000000000"
FIRST_NANO = 10 * 1_070 + 3 * 3_450
SECOND_NANO = 20 * 1_070


@pytest.fixture
async def books(tmp_path: Path) -> AsyncIterator[Books]:
    """Two charged requests, a day apart."""
    async with open_books(tmp_path, CREDIT_NANO) as opened:
        await opened.charge("chatcmpl-one", Usage(10, 3, 2), NOW_MS)
        await opened.charge("chatcmpl-two", Usage(20, 0), NOW_MS + DAY_MS)
        yield opened


async def get(books: Books, query: bytes) -> tuple[int, Any]:
    catalogue = Catalogue({"forte": (Route("acme", "m", 9, 9),)}, {"forte": Character("Be brief.")}, {"forte": FORTE})
    dispatcher = Dispatcher({}, books.observer, ceiling=100)
    gateway = Gateway(books.db, catalogue, dispatcher, books.writer, LIMITS, books.observer)
    client = Client()
    await serve_api(gateway, client.exchange([(b"x-api-key", books.secret.encode())], "GET", "/v1/usage", query))
    return client.status, json.loads(client.bodies[0])


async def test_totals_are_the_sum_of_the_groups(books: Books) -> None:
    """Each day has its own counters, and together they are the totals and what the balance lacks."""
    status, report = await get(books, ALL)
    assert status == 200
    assert [(day["day"], day["requests"]) for day in report["data"]] == [("2027-01-15", 1), ("2027-01-16", 1)]
    assert report["totals"] == {
        "requests": 2,
        "prompt_tokens": 30,
        "cached_tokens": 2,
        "completion_tokens": 3,
        "cost": "0.00004245",
    }
    assert CREDIT_NANO - FIRST_NANO - SECOND_NANO == 4_999_957_550
    assert report["balance"] == "4.99995755"


@pytest.mark.parametrize(("group_by", "of"), [("model", "forte"), ("key", KEY)])
async def test_groups_bear_the_name_of_what_they_are_by(books: Books, group_by: str, of: str) -> None:
    """By model it is the class, by key the key's id."""
    _, report = await get(books, ALL + b"&group_by=" + group_by.encode())
    assert [group[group_by] for group in report["data"]] == [of]
    assert {**report["data"][0], group_by: None} == {**report["totals"], group_by: None}


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "requests"),
    [
        (NOW_MS, NOW_MS + DAY_MS, 1),
        (NOW_MS, NOW_MS + DAY_MS + 1000, 2),
        (NOW_MS + 1000, NOW_MS + DAY_MS, 0),
        (NOW_MS - 1000, NOW_MS, 0),
    ],
)
async def test_a_span_has_its_start_and_not_its_end(books: Books, start_ms: int, end_ms: int, requests: int) -> None:
    """A request at the very start is in the span, one at the very end is in the next."""
    query = f"start={start_ms // 1000}&end={end_ms // 1000}".encode()
    _, report = await get(books, query)
    assert report["totals"]["requests"] == requests


@pytest.mark.parametrize("query", [b"start=soon", b"end=%00", b"start=2&end=1", b"group_by=hour", b"start=%ff%fe"])
async def test_a_bad_query_is_400(books: Books, query: bytes) -> None:
    """What cannot be read is the caller's to mend."""
    status, said = await get(books, query)
    assert (status, said["error"]["type"]) == (400, "invalid_request_error")


async def test_of_a_repeated_parameter_the_last_counts(books: Books) -> None:
    """As with a form, what was said last is what is meant; unknown parameters mean nothing."""
    status, report = await get(books, ALL + b"&group_by=hour&group_by=model&user=x")
    assert (status, next(iter(report["data"][0]))) == (200, "model")


async def test_nothing_used_is_a_report_of_zeros(books: Books) -> None:
    """An empty span has totals of zero and no groups."""
    _, report = await get(books, b"start=0&end=1")
    assert report["data"] == []
    assert report["totals"]["cost"] == "0.00"
