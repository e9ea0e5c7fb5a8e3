"""Holds in the store: taken whole, fitted or not at all, and charged once at the prices they were taken at."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from cadenza.core.money import Price
from cadenza.core.records import OUTPUT_TOKENS_MAX, Usage
from cadenza.ledger.rules import Ended, Held, Insufficient
from cadenza.store.schema import accounts, entries, reserves, usage
from cadenza.store.store import Store, StoreRefused
from tests.postgres import Postgres
from tests.store.aside import transaction
from tests.store.moves import (
    PRICE,
    come_to_wait,
    cost_of,
    findings,
    finish,
    fund,
    make_hold,
    money,
    postgres_store,
    reserves_of,
    take,
)
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of

PROMPT_NANO = 100 * 10  # the prompt of an ordinary hold
WHOLE_NANO = PROMPT_NANO + 50 * 30  # and its whole allowance
SHORT_NANO = PROMPT_NANO + 16 * 30  # and the shortest answer


@pytest.fixture
async def rich(store: Store) -> AsyncIterator[Store]:
    """An account with one dollar; at the end of the test the ledger must be sound."""
    await fund(store, DOLLAR_NANO)
    yield store
    assert await findings(store) == []


async def charges(store: Store) -> list[int]:
    return [entry.amount_nano for entry in await rows_of(store, entries) if entry.kind == "charge"]


async def test_the_whole_allowance_is_held(rich: Store) -> None:
    """If the account can pay, the prompt and the whole allowance are reserved and nothing is charged."""
    assert await take(rich, make_hold(), "proc_x") == Held(WHOLE_NANO, 50)
    assert await money(rich) == (DOLLAR_NANO, WHOLE_NANO)
    assert await reserves_of(rich) == {"proc_x": WHOLE_NANO}
    assert await charges(rich) == []


async def test_the_allowance_is_fitted_to_the_nano(store: Store) -> None:
    """Exactly as many output tokens are held as the credit pays for beside the prompt."""
    payable = {0: 50, 1: 49, 30: 49, 31: 48, 601: 29, 34 * 30: 16}
    for missing_nano, tokens in payable.items():
        free_nano, held_nano = WHOLE_NANO - missing_nano, PROMPT_NANO + tokens * 30
        account = f"{missing_nano}"
        await fund(store, free_nano, account)
        assert await take(store, make_hold(f"r{account}", account=account)) == Held(held_nano, tokens)
        assert await money(store, account) == (free_nano, held_nano)
    assert await findings(store) == []


async def test_less_than_a_short_answer_is_insufficient(store: Store) -> None:
    """Below the prompt and 16 tokens nothing is held, and the answer has the free and the needed credit."""
    for free_nano in (SHORT_NANO - 1, PROMPT_NANO, PROMPT_NANO - 1, 0):
        account = f"{free_nano}"
        await fund(store, free_nano, account)
        assert await take(store, make_hold(account=account)) == Insufficient(free_nano, SHORT_NANO)
        assert await money(store, account) == (free_nano, 0)
    assert await rows_of(store, reserves) == []


async def test_a_request_for_less_than_16_needs_only_that(store: Store) -> None:
    """A request for 3 tokens is held for 3, and needs credit for 3 only."""
    await fund(store, PROMPT_NANO + 3 * 30, "a")
    await fund(store, PROMPT_NANO + 3 * 30 - 1, "b")
    assert await take(store, make_hold("r1", allowance_tokens=3)) == Held(1090, 3)
    assert await take(store, make_hold("r2", allowance_tokens=3, account="b")) == Insufficient(1089, 1090)


async def test_held_credit_cannot_be_held_again(store: Store) -> None:
    """The second hold is fitted to the credit that the first left, and the third is refused."""
    await fund(store, WHOLE_NANO + PROMPT_NANO + 20 * 30)
    answers = [await take(store, make_hold(f"r{number}")) for number in range(3)]
    assert answers == [
        Held(WHOLE_NANO, 50),
        Held(PROMPT_NANO + 20 * 30, 20),
        Insufficient(0, SHORT_NANO),
    ]
    assert await findings(store) == []


async def test_a_price_of_zero_needs_no_credit(store: Store) -> None:
    """A class with prices of zero holds zero and charges zero."""
    await fund(store, 0)
    hold = make_hold(price=Price(0, 0))
    assert await take(store, hold) == Held(0, 50)
    assert await finish(store, hold, Usage(100, 50)) == Ended()
    assert await charges(store) == [0]
    assert await findings(store) == []


async def test_free_output_is_never_fitted(store: Store) -> None:
    """If output is free, only the prompt must be paid, and the whole allowance is granted."""
    await fund(store, PROMPT_NANO)
    hold = make_hold(price=Price(10, 0), allowance_tokens=OUTPUT_TOKENS_MAX, prompt_tokens=101)
    assert await take(store, hold) == Insufficient(PROMPT_NANO, PROMPT_NANO + 10)
    assert await take(store, msgspec.structs.replace(hold, prompt_tokens=100)) == Held(PROMPT_NANO, OUTPUT_TOKENS_MAX)


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


async def test_an_uncertain_end_that_was_written_changes_nothing(rich: Store) -> None:
    """Written again, it is repeated, whatever it counts now; if it cost less than is due, it is lost again."""
    hold = make_hold()
    await take(rich, hold)
    await finish(rich, hold, Usage(100, 7))
    before = [await rows_of(rich, table) for table in (accounts, entries, usage)]
    assert await finish(rich, hold, Usage(100, 7), is_uncertain=True) == Ended(1210, is_repeated=True)
    assert await finish(rich, hold, is_uncertain=True) == Ended(1210, is_repeated=True)
    assert await finish(rich, hold, Usage(100, 8), is_uncertain=True) == Ended(1210, 30, is_repeated=True, is_lost=True)
    assert [await rows_of(rich, table) for table in (accounts, entries, usage)] == before


async def test_an_uncertain_end_that_was_not_written_is_charged(rich: Store) -> None:
    """The store does not have it: it is an ordinary charge."""
    hold = make_hold()
    await take(rich, hold)
    assert await finish(rich, hold, Usage(100, 7), is_uncertain=True) == Ended(1210)
    assert await money(rich) == (DOLLAR_NANO - 1210, 0)


async def test_accounts_do_not_touch_each_other(rich: Store) -> None:
    """Neither a hold nor its outcome changes another account."""
    await fund(rich, 5000, "b")
    await take(rich, make_hold("r1"))
    await take(rich, make_hold("r2", account="b"))
    await finish(rich, make_hold("r2", account="b"), Usage(100, 10))
    assert [await money(rich), await money(rich, "b")] == [(DOLLAR_NANO, WHOLE_NANO), (5000 - 1300, 0)]


async def test_the_charge_is_what_was_used(rich: Store) -> None:
    """Below, at and above the hold, the usage is charged exactly and the whole hold is given back."""
    costs_nano = {
        Usage(0, 0): 0,
        Usage(100, 7): 1210,
        Usage(100, 7, cached_tokens=100): 410,
        Usage(100, 7, cached_tokens=40): 890,
        Usage(100, 50): WHOLE_NANO,
        Usage(100, 51): WHOLE_NANO + 30,
        Usage(9000, 4000): 210_000,
    }
    balance_nano = DOLLAR_NANO
    for number, (counted, cost_nano) in enumerate(costs_nano.items()):
        await take(rich, make_hold(f"r{number}"))
        assert await finish(rich, make_hold(f"r{number}"), counted) == Ended(cost_nano)
        balance_nano -= cost_nano
        assert await money(rich) == (balance_nano, 0)
        assert await cost_of(rich, f"r{number}") == cost_nano
    assert await charges(rich) == [-cost_nano for cost_nano in costs_nano.values()]


async def test_cached_tokens_without_a_price_cost_as_input(rich: Store) -> None:
    """Without a cached price in the hold, cached tokens cost as much as other input."""
    hold = make_hold(price=Price(10, 30))
    await take(rich, hold)
    assert await finish(rich, hold, Usage(100, 0, cached_tokens=60)) == Ended(1000)


async def test_a_charge_is_made_at_the_prices_of_its_hold(rich: Store) -> None:
    """A later hold with other prices does not change the open one."""
    cheap, dear = make_hold("r1"), make_hold("r2", price=Price(10_000, 30_000, 2000))
    await take(rich, cheap)
    await take(rich, dear)
    assert await finish(rich, cheap, Usage(100, 10)) == Ended(1300)
    assert await finish(rich, dear, Usage(100, 10)) == Ended(1_300_000)


async def test_a_charge_above_the_hold_takes_free_credit(store: Store) -> None:
    """The charge is at most the hold and all free credit; the answer has what is missing, and the balance is zero."""
    await fund(store, WHOLE_NANO + 100)
    await take(store, make_hold())
    assert await finish(store, make_hold(), Usage(100, 54)) == Ended(WHOLE_NANO + 100, short_nano=20)
    assert await money(store) == (0, 0)
    assert await findings(store) == []


async def test_a_charge_never_takes_credit_held_by_others(store: Store) -> None:
    """Without free credit a charge stays within its own hold, and the other request can still be paid."""
    await fund(store, 2 * WHOLE_NANO)
    await take(store, make_hold("r1"))
    await take(store, make_hold("r2"))
    assert await finish(store, make_hold("r1"), Usage(100, 60)) == Ended(WHOLE_NANO, short_nano=300)
    assert await money(store) == (WHOLE_NANO, WHOLE_NANO)
    assert await finish(store, make_hold("r2"), Usage(100, 50)) == Ended(WHOLE_NANO)
    assert await findings(store) == []


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


async def test_a_negative_usage_changes_nothing(rich: Store) -> None:
    """Counts that would credit the account are an assertion error, and the credit stays held."""
    await take(rich, make_hold())
    for absurd in (Usage(100, -1), Usage(-1, 0), Usage(100, 0, cached_tokens=101), Usage(100, 0, cached_tokens=-1)):
        with pytest.raises(AssertionError):
            await finish(rich, make_hold(), absurd)
    assert await money(rich) == (DOLLAR_NANO, WHOLE_NANO)
    assert await cost_of(rich) is None


async def test_grants_less_charges_are_the_balance(rich: Store) -> None:
    """After many holds and outcomes the balance is the grants less the charges."""
    for number in range(20):
        await take(rich, make_hold(f"r{number}"))
    ended = [
        await finish(rich, make_hold(f"r{number}"), Usage(100, number) if number % 3 else None) for number in range(20)
    ]
    charged_nano = sum(1000 + number * 30 for number in range(20) if number % 3)
    assert sum(end.charged_nano for end in ended) == charged_nano
    assert await money(rich) == (DOLLAR_NANO - charged_nano, 0)


async def test_simultaneous_holds_never_overdraw(store: Store) -> None:
    """Of forty processes at the same moment, on credit for three, exactly three hold."""
    await fund(store, 3 * PRICE.quote(100, 16) + 5)
    wanted = [make_hold(f"r{number}", allowance_tokens=16) for number in range(40)]
    answers = await asyncio.gather(*(take(store, hold, f"proc_{hold.completion_id}") for hold in wanted))
    assert sum(isinstance(answer, Held) for answer in answers) == 3
    assert await money(store) == (3 * PRICE.quote(100, 16) + 5, 3 * PRICE.quote(100, 16))


async def test_a_charge_that_waits_for_a_release_uses_its_credit(postgres: Postgres) -> None:
    """A charge that was too large when it was tried is made in full once another process has given back its reserve."""
    async with postgres_store(postgres) as (store, url):
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
