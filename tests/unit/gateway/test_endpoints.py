"""The usage endpoint: the query, and the report of the account that asks."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cadenza.core.records import Outcome, Usage
from cadenza.ledger.writer import LedgerWriter
from tests.unit.gateway.client import Client
from tests.unit.gateway.funded_store import ACCOUNT_ID, FORTE, FUNDED_NANO, KEY_ID, FundedStore, make_hold
from tests.unit.gateway.gateways import Api, running_api

NOW_MS = 1_800_000_000_000
DAY_MS = 24 * 60 * 60 * 1000
ALL = b"start=0&end=2000000000"


@pytest.fixture
async def api(funded: FundedStore) -> AsyncIterator[Api]:
    """Its account was charged for two requests, one day apart."""
    async with running_api(funded) as running:
        await charge(running.gateway.ledger, "chatcmpl-one", Usage(10, 3, 2), NOW_MS)
        await charge(running.gateway.ledger, "chatcmpl-two", Usage(20, 0), NOW_MS + DAY_MS)
        yield running


async def charge(ledger: LedgerWriter, completion_id: str, usage: Usage, started_at: int) -> None:
    """Hold and settle a request."""
    await ledger.hold(make_hold(completion_id, started_at=started_at))
    await ledger.end(
        Outcome(
            request_id="r1",
            completion_id=completion_id,
            account_id=ACCOUNT_ID,
            endpoint="chat",
            status=200,
            duration_ms=9,
            ended_at=started_at + 9,
            usage=usage,
        )
    )


async def get(api: Api, query: bytes) -> tuple[int, Any]:
    client = Client()
    api.get(client, "/v1/usage", query)
    await client.serve(api.gateway)
    return client.status, json.loads(client.bodies[0])


async def test_the_totals_are_the_sum_of_the_groups(api: Api) -> None:
    """Each day has its own counters; together they are the totals, and what the balance lacks."""
    status, report = await get(api, ALL)
    assert status == 200
    assert [(day["day"], day["requests"]) for day in report["data"]] == [("2027-01-15", 1), ("2027-01-16", 1)]
    assert report["totals"] == {
        "requests": 2,
        "prompt_tokens": 30,
        "cached_tokens": 2,
        "completion_tokens": 3,
        "cost": "0.00004245",
    }
    assert FUNDED_NANO - FORTE.charge(Usage(10, 3, 2)) - FORTE.charge(Usage(20, 0)) == 4_999_957_550
    assert report["balance"] == "4.99995755"


@pytest.mark.parametrize(("group_by", "name"), [("model", "forte"), ("key", KEY_ID)])
async def test_a_group_has_the_name_of_its_class_or_key(api: Api, group_by: str, name: str) -> None:
    """By model it is the class, by key the id of the key."""
    _, report = await get(api, ALL + b"&group_by=" + group_by.encode())
    assert [group[group_by] for group in report["data"]] == [name]
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
async def test_a_span_includes_its_start_and_not_its_end(api: Api, start_ms: int, end_ms: int, requests: int) -> None:
    """Consecutive spans count each request once."""
    query = f"start={start_ms // 1000}&end={end_ms // 1000}".encode()
    _, report = await get(api, query)
    assert report["totals"]["requests"] == requests
