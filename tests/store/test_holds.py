"""Holds in the store: taken whole, fitted or not at all, and charged once at the prices they were taken at."""

import asyncio

import pytest

from cadenza.core.records import Usage
from cadenza.ledger.rules import Ended, HeldCredit
from cadenza.store.schema import accounts, entries, usage
from cadenza.store.store import Store, StoreRefused
from tests.store.aside import transaction
from tests.store.moves import (
    ON_POSTGRES,
    PRICE,
    come_to_wait,
    findings,
    finish,
    fund,
    make_hold,
    money,
    take,
)
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of

PROMPT_NANO = 100 * 10  # the prompt of an ordinary hold
WHOLE_NANO = PROMPT_NANO + 50 * 30  # and its whole allowance


async def charges(store: Store) -> list[int]:
    return [entry.amount_nano for entry in await rows_of(store, entries) if entry.kind == "charge"]


async def test_a_completion_id_is_charged_once(rich: Store) -> None:
    """A second end with the same completion id is refused and changes nothing."""
    hold = make_hold()
    await take(rich, hold)
    await finish(rich, hold, Usage(100, 7))
    before = [await rows_of(rich, table) for table in (accounts, entries, usage)]
    for counted in (Usage(100, 50), None):
        with pytest.raises(StoreRefused):
            await finish(rich, hold, counted)
    assert [await rows_of(rich, table) for table in (accounts, entries, usage)] == before


async def test_a_release_costs_nothing(rich: Store) -> None:
    """The hold is given back, no entry is made, and the metering row has a cost of zero."""
    await take(rich, make_hold())
    assert await finish(rich, make_hold(), status=502) == Ended()
    assert await money(rich) == (DOLLAR_NANO, 0)
    assert await charges(rich) == []
    (row,) = await rows_of(rich, usage)
    assert (row.status, row.prompt_tokens, row.completion_tokens, row.cost_nano) == (502, 0, 0, 0)


async def test_the_metering_row_describes_the_request(rich: Store) -> None:
    """One row per request: ids, route, counts, prices, cost, status, timings, and the digest of its idempotency key."""
    await take(rich, make_hold(key=b"k" * 32))
    await finish(rich, make_hold(key=b"k" * 32), Usage(100, 7, cached_tokens=40, estimated=True))
    (row,) = await rows_of(rich, usage)
    assert row._asdict() == {
        "completion_id": "r1",
        "request_id": "req-r1",
        "account_id": "acct_a",
        "key_id": "key_a",
        "class_id": "forte",
        "provider": "acme",
        "model": "acme-large",
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "completion_tokens": 7,
        "cost_nano": 890,
        "estimated": True,
        "status": 200,
        "stream": True,
        "started_at": NOW_MS,
        "first_byte_ms": 12,
        "duration_ms": 345,
        "input_nano": 10,
        "output_nano": 30,
        "cached_input_nano": 2,
        "held_nano": 2500,
        "short_nano": 0,
        "source": "request",
        "idempotency_digest": b"k" * 32,
        "version": 3,
        "provider_cost_nano": None,
    }


async def test_simultaneous_holds_never_overdraw(store: Store) -> None:
    """Of forty processes at the same moment, on credit for three, exactly three hold."""
    await fund(store, 3 * PRICE.quote(100, 16) + 5)
    wanted = [make_hold(f"r{number}", allowance_tokens=16) for number in range(40)]
    answers = await asyncio.gather(*(take(store, hold, f"proc_{hold.completion_id}") for hold in wanted))
    assert sum(isinstance(answer, HeldCredit) for answer in answers) == 3
    assert await money(store) == (3 * PRICE.quote(100, 16) + 5, 3 * PRICE.quote(100, 16))


@ON_POSTGRES
async def test_a_charge_that_waits_for_a_release_uses_its_credit(store: Store, url: str) -> None:
    """A charge that was too large when it was tried is made in full once another process has given back its reserve."""
    await fund(store, 2 * WHOLE_NANO)
    await take(store, make_hold("r1"))
    await take(store, make_hold("r2"), "proc_b")
    async with transaction(url) as other:
        await other.execute(f"UPDATE accounts SET held_nano = held_nano - {WHOLE_NANO}")
        await other.execute("DELETE FROM reserves WHERE process = 'proc_b'")
        charging = asyncio.create_task(finish(store, make_hold("r1"), Usage(100, 60)))
        assert await come_to_wait(store, 1)
    assert await charging == Ended(2800)
    assert (await money(store), await findings(store)) == ((2 * WHOLE_NANO - 2800, 0), [])
