"""Holds: taken whole, fitted or not at all, and ended once at the prices they were taken at."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import msgspec
import pytest

from cadenza.core.money import Price
from cadenza.core.records import OUTPUT_TOKENS_MAX, Outcome, Usage
from cadenza.store import ledger
from cadenza.store.ledger import Ended, Held, Insufficient
from cadenza.store.schema import accounts, entries, holds, usage
from cadenza.store.store import Store, StoreRefused
from tests.postgres import Postgres
from tests.store.aside import transaction
from tests.store.moves import (
    PRICE,
    come_to_wait,
    findings,
    finish,
    fund,
    make_hold,
    make_outcome,
    mark_of,
    money,
    postgres_store,
    state_of,
    take,
)
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of

PROMPT_NANO = 100 * 10  # the prompt of an ordinary hold
WHOLE_NANO = PROMPT_NANO + 50 * 30  # and its whole allowance
SHORT_NANO = PROMPT_NANO + 16 * 30  # and the shortest answer

RELEASE_R2 = (
    f"UPDATE accounts SET held_nano = held_nano - {WHOLE_NANO}",
    "UPDATE holds SET state = 'released', ended_at = 0 WHERE completion_id = 'r2'",
    """
    INSERT INTO usage (completion_id, request_id, account_id, key_id, class_id, provider, model, prompt_tokens,
        cached_tokens, completion_tokens, cost_nano, estimated, status, stream, started_at, duration_ms)
    SELECT completion_id, request_id, account_id, key_id, class_id, '', '', 0, 0, 0, 0, false, 499, stream, 0, 0
    FROM holds WHERE completion_id = 'r2'""",
)


@pytest.fixture
async def rich(store: Store) -> AsyncIterator[Store]:
    """An account with one dollar; at the end of the test the ledger must be sound."""
    await fund(store, DOLLAR_NANO)
    yield store
    assert await findings(store) == []


async def charges(store: Store) -> list[int]:
    return [entry.amount_nano for entry in await rows_of(store, entries) if entry.kind == "charge"]


async def test_the_whole_allowance_is_held(rich: Store) -> None:
    """If the account can pay, the prompt and the whole allowance are held and nothing is charged."""
    assert await take(rich, make_hold()) == Held(50, DOLLAR_NANO - WHOLE_NANO)
    assert await money(rich) == (DOLLAR_NANO, WHOLE_NANO)
    assert await charges(rich) == []


async def test_a_hold_stores_everything_that_ending_it_needs(rich: Store) -> None:
    """The row has the ids, counts, prices, owner and time, and is open."""
    await take(rich, make_hold(), "proc_x")
    (row,) = await rows_of(rich, holds)
    assert row._asdict() == {
        "completion_id": "r1",
        "request_id": "req-r1",
        "account_id": "acct_a",
        "key_id": "key_a",
        "class_id": "forte",
        "owner": "proc_x",
        "state": "open",
        "amount_nano": WHOLE_NANO,
        "prompt_tokens": 100,
        "delivered_tokens": 0,
        "input_nano": 10,
        "output_nano": 30,
        "cached_input_nano": 2,
        "stream": True,
        "started_at": NOW_MS,
        "ended_at": None,
    }


async def test_the_allowance_is_fitted_to_the_nano(store: Store) -> None:
    """Exactly as many output tokens are held as the credit pays for beside the prompt."""
    payable = {0: 50, 1: 49, 30: 49, 31: 48, 601: 29, 34 * 30: 16}
    for missing_nano, tokens in payable.items():
        free_nano, held_nano = WHOLE_NANO - missing_nano, PROMPT_NANO + tokens * 30
        account = f"{missing_nano}"
        await fund(store, free_nano, account)
        assert await take(store, make_hold(f"r{account}", account=account)) == Held(tokens, free_nano - held_nano)
        assert await money(store, account) == (free_nano, held_nano)
    assert await findings(store) == []


async def test_less_than_a_short_answer_is_insufficient(store: Store) -> None:
    """Below the prompt and 16 tokens nothing is held, and the answer has the free and the needed credit."""
    for free_nano in (SHORT_NANO - 1, PROMPT_NANO, PROMPT_NANO - 1, 0):
        account = f"{free_nano}"
        await fund(store, free_nano, account)
        assert await take(store, make_hold(account=account)) == Insufficient(free_nano, SHORT_NANO)
        assert await money(store, account) == (free_nano, 0)
    assert await rows_of(store, holds) == []


async def test_a_request_for_less_than_16_needs_only_that(store: Store) -> None:
    """A request for 3 tokens is held for 3, and needs credit for 3 only."""
    await fund(store, PROMPT_NANO + 3 * 30, "a")
    await fund(store, PROMPT_NANO + 3 * 30 - 1, "b")
    assert await take(store, make_hold("r1", allowance_tokens=3)) == Held(3, 0)
    assert await take(store, make_hold("r2", allowance_tokens=3, account="b")) == Insufficient(1089, 1090)


async def test_held_credit_cannot_be_held_again(store: Store) -> None:
    """The second hold is fitted to the credit that the first left, and the third is refused."""
    await fund(store, WHOLE_NANO + PROMPT_NANO + 20 * 30)
    answers = [await take(store, make_hold(f"r{number}")) for number in range(3)]
    assert answers == [Held(50, PROMPT_NANO + 20 * 30), Held(20, 0), Insufficient(0, PROMPT_NANO + 16 * 30)]
    assert await findings(store) == []


async def test_a_price_of_zero_needs_no_credit(store: Store) -> None:
    """A class with prices of zero holds zero and charges zero."""
    await fund(store, 0)
    assert await take(store, make_hold(price=Price(0, 0))) == Held(50, 0)
    assert await finish(store, make_outcome(usage=Usage(100, 50))) == Ended(is_first=True)
    assert await charges(store) == [0]
    assert await findings(store) == []


async def test_free_output_is_never_fitted(store: Store) -> None:
    """If output is free, only the prompt must be paid, and the whole allowance is granted."""
    await fund(store, PROMPT_NANO)
    hold = make_hold(price=Price(10, 0), allowance_tokens=OUTPUT_TOKENS_MAX, prompt_tokens=101)
    assert await take(store, hold) == Insufficient(PROMPT_NANO, PROMPT_NANO + 10)
    assert await take(store, msgspec.structs.replace(hold, prompt_tokens=100)) == Held(OUTPUT_TOKENS_MAX, 0)


async def test_a_completion_id_is_held_once(rich: Store) -> None:
    """A second hold with the same completion id is refused and changes nothing."""
    await take(rich, make_hold())
    with pytest.raises(StoreRefused):
        await take(rich, make_hold(allowance_tokens=7))
    assert await money(rich) == (DOLLAR_NANO, WHOLE_NANO)


async def test_accounts_do_not_touch_each_other(rich: Store) -> None:
    """Neither a hold nor its outcome changes another account."""
    await fund(rich, 5000, "b")
    await take(rich, make_hold("r1"))
    await take(rich, make_hold("r2", account="b"))
    await finish(rich, make_outcome("r2", Usage(100, 10), account="b"))
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
        assert await finish(rich, make_outcome(f"r{number}", counted)) == Ended(True, charged_nano=cost_nano)
        balance_nano -= cost_nano
        assert await money(rich) == (balance_nano, 0)
        assert await state_of(rich, f"r{number}") == "settled"
    assert await charges(rich) == [-cost_nano for cost_nano in costs_nano.values()]


async def test_cached_tokens_without_a_price_cost_as_input(rich: Store) -> None:
    """Without a cached price in the hold, cached tokens cost as much as other input."""
    await take(rich, make_hold(price=Price(10, 30)))
    assert await finish(rich, make_outcome(usage=Usage(100, 0, cached_tokens=60))) == Ended(True, charged_nano=1000)


async def test_a_charge_is_made_at_the_prices_of_its_hold(rich: Store) -> None:
    """A later hold with other prices does not change the open one."""
    await take(rich, make_hold("r1"))
    await take(rich, make_hold("r2", price=Price(10_000, 30_000, 2000)))
    assert await finish(rich, make_outcome("r1", Usage(100, 10))) == Ended(True, charged_nano=1300)
    assert await finish(rich, make_outcome("r2", Usage(100, 10))) == Ended(True, charged_nano=1_300_000)


async def test_a_charge_above_the_hold_takes_free_credit(store: Store) -> None:
    """The charge is at most the hold and all free credit; the answer has what is missing, and the balance is zero."""
    await fund(store, WHOLE_NANO + 100)
    await take(store, make_hold())
    assert await finish(store, make_outcome(usage=Usage(100, 54))) == Ended(True, WHOLE_NANO + 100, short_nano=20)
    assert await money(store) == (0, 0)
    assert await findings(store) == []


async def test_a_charge_never_takes_credit_held_by_others(store: Store) -> None:
    """Without free credit a charge stays within its own hold, and the other request can still be paid."""
    await fund(store, 2 * WHOLE_NANO)
    await take(store, make_hold("r1"))
    await take(store, make_hold("r2"))
    assert await finish(store, make_outcome("r1", Usage(100, 60))) == Ended(True, WHOLE_NANO, short_nano=300)
    assert await money(store) == (WHOLE_NANO, WHOLE_NANO)
    assert await finish(store, make_outcome("r2", Usage(100, 50))) == Ended(True, WHOLE_NANO)
    assert await findings(store) == []


async def test_a_release_costs_nothing(rich: Store) -> None:
    """The hold is given back, no entry is made, and the metering row has a cost of zero."""
    await take(rich, make_hold())
    assert await finish(rich, make_outcome(status=502)) == Ended(is_first=True)
    assert await money(rich) == (DOLLAR_NANO, 0)
    assert (await charges(rich), await state_of(rich)) == ([], "released")
    (row,) = await rows_of(rich, usage)
    assert (row.status, row.prompt_tokens, row.completion_tokens, row.cost_nano) == (502, 0, 0, 0)


async def test_the_metering_row_describes_the_request(rich: Store) -> None:
    """One row per request: ids, route, counts, cost, status and timings."""
    await take(rich, make_hold())
    await finish(rich, make_outcome(usage=Usage(100, 7, cached_tokens=40, estimated=True)))
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
    }


async def test_a_hold_ends_once(rich: Store) -> None:
    """A second outcome of a settled or released hold changes no row, and the answer says so."""
    for number, (first, second) in enumerate(itertools.product((Usage(100, 7), None), (Usage(100, 50), None))):
        await take(rich, make_hold(f"r{number}"))
        assert (await finish(rich, make_outcome(f"r{number}", first))).is_first
        before = [await rows_of(rich, table) for table in (accounts, entries, usage, holds)]
        assert await finish(rich, make_outcome(f"r{number}", second)) == Ended(is_first=False)
        assert [await rows_of(rich, table) for table in (accounts, entries, usage, holds)] == before


async def test_the_outcome_of_an_unknown_request_changes_nothing(rich: Store) -> None:
    """A request without a hold is neither charged nor metered."""
    await take(rich, make_hold())
    for counted in (Usage(100, 7), None):
        assert await finish(rich, make_outcome("r9", counted)) == Ended(is_first=False)
    assert await money(rich) == (DOLLAR_NANO, WHOLE_NANO)
    assert (await charges(rich), await rows_of(rich, usage)) == ([], [])


async def test_a_negative_usage_changes_nothing(rich: Store) -> None:
    """Counts that would credit the account are an assertion error, and the hold stays open."""
    await take(rich, make_hold())
    for absurd in (Usage(100, -1), Usage(-1, 0), Usage(100, 0, cached_tokens=101), Usage(100, 0, cached_tokens=-1)):
        with pytest.raises(AssertionError):
            await finish(rich, make_outcome(usage=absurd))
    assert await money(rich) == (DOLLAR_NANO, WHOLE_NANO)
    assert await state_of(rich) == "open"


async def test_grants_less_charges_are_the_balance(rich: Store) -> None:
    """After many holds and outcomes the balance is the grants less the charges."""
    for number in range(20):
        await take(rich, make_hold(f"r{number}"))
    ended = [
        await finish(rich, make_outcome(f"r{number}", Usage(100, number) if number % 3 else None))
        for number in range(20)
    ]
    charged_nano = sum(1000 + number * 30 for number in range(20) if number % 3)
    assert sum(end.charged_nano for end in ended) == charged_nano
    assert await money(rich) == (DOLLAR_NANO - charged_nano, 0)


async def test_a_mark_only_grows(rich: Store) -> None:
    """A later, smaller mark changes nothing, and the others of its batch are written."""
    for completion_id in ("r1", "r2"):
        await take(rich, make_hold(completion_id))
    await mark(rich, {"r1": 9, "r2": 1})
    await mark(rich, {})
    await mark(rich, {"r1": 4, "r2": 2, "r9": 5})
    assert [await mark_of(rich, "r1"), await mark_of(rich, "r2")] == [9, 2]


async def test_a_mark_does_not_change_an_ended_hold(rich: Store) -> None:
    """A mark that comes after the outcome changes nothing."""
    for completion_id, counted in (("r1", Usage(100, 7)), ("r2", None)):
        await take(rich, make_hold(completion_id))
        await finish(rich, make_outcome(completion_id, counted))
    before = await rows_of(rich, holds)
    await mark(rich, {"r1": 40, "r2": 40})
    assert await rows_of(rich, holds) == before


async def test_the_holds_of_a_dead_process_are_settled_by_their_marks(rich: Store) -> None:
    """A marked hold is charged as an estimate, another is released, and the holds of other processes stay open."""
    for completion_id, owner in (("r1", "proc_a"), ("r2", "proc_a"), ("r3", "proc_b")):
        await take(rich, make_hold(completion_id), owner)
    await mark(rich, {"r1": 7, "r3": 9})
    assert await end_all_of(rich, "proc_a") == [
        dead("r1", Usage(100, 7, estimated=True)),
        dead("r2", None),
    ]
    assert await money(rich) == (DOLLAR_NANO - 1210, WHOLE_NANO)
    assert [await state_of(rich, completion_id) for completion_id in ("r1", "r2", "r3")] == [
        "settled",
        "released",
        "open",
    ]
    metered = {row.completion_id: row for row in await rows_of(rich, usage)}
    assert (metered["r1"].completion_tokens, metered["r1"].estimated, metered["r1"].cost_nano) == (7, True, 1210)
    assert (metered["r1"].status, metered["r2"].status, metered["r1"].duration_ms) == (500, 500, 1000)
    assert await end_all_of(rich, "proc_a") == []
    assert await rich.transact(ledger.owners_with_open_holds) == ["proc_b"]


async def test_a_mark_above_the_hold_is_charged_up_to_the_credit(store: Store) -> None:
    """After a crash, a mark above the hold takes the free credit and never makes the balance negative."""
    await fund(store, WHOLE_NANO + 10)
    await take(store, make_hold())
    await mark(store, {"r1": 500})
    assert len(await end_all_of(store, "proc_a")) == 1
    assert await money(store) == (0, 0)
    assert await findings(store) == []


async def test_a_process_that_died_long_ago_is_still_swept(rich: Store) -> None:
    """Holds left open by a crash 25 days ago (more than 2**31 ms) are ended too."""
    await take(rich, make_hold(started_at=NOW_MS - 25 * 86_400_000))
    assert len(await end_all_of(rich, "proc_a")) == 1
    assert await money(rich) == (DOLLAR_NANO, 0)


async def test_a_clock_that_went_back_does_not_stop_the_sweep(rich: Store) -> None:
    """A hold with a start in the future ends with a duration of zero."""
    await take(rich, make_hold(started_at=NOW_MS + 86_400_000))
    assert len(await end_all_of(rich, "proc_a")) == 1
    assert [row.duration_ms for row in await rows_of(rich, usage)] == [0]


async def test_simultaneous_holds_never_overdraw(store: Store) -> None:
    """Of forty simultaneous transactions on credit for three, exactly three hold."""
    await fund(store, 3 * PRICE.quote(100, 16) + 5)
    wanted = [make_hold(f"r{number}", allowance_tokens=16) for number in range(40)]
    answers = await asyncio.gather(*(take(store, hold) for hold in wanted))
    assert sum(isinstance(answer, Held) for answer in answers) == 3
    assert await money(store) == (3 * PRICE.quote(100, 16) + 5, 3 * PRICE.quote(100, 16))


async def test_a_charge_that_waits_for_a_release_uses_its_credit(postgres: Postgres) -> None:
    """A charge that was too large when it was tried is made in full once another hold has been released."""
    async with postgres_store(postgres) as (store, url):
        await fund(store, 2 * WHOLE_NANO)
        for completion_id in ("r1", "r2"):
            await take(store, make_hold(completion_id))
        async with transaction(url) as other:
            for statement in RELEASE_R2:
                await other.execute(statement)
            charging = asyncio.create_task(finish(store, make_outcome("r1", Usage(100, 60))))
            assert await come_to_wait(store, 1)
        assert await charging == Ended(True, charged_nano=2800)
        assert (await money(store), await findings(store)) == ((2 * WHOLE_NANO - 2800, 0), [])


async def mark(store: Store, delivered: dict[str, int]) -> None:
    marks = {completion_id: Usage(100, tokens) for completion_id, tokens in delivered.items()}
    await store.transact(lambda tx: ledger.mark_delivered(tx, marks))


async def end_all_of(store: Store, owner: str) -> list[Outcome]:
    return await store.transact(lambda tx: ledger.end_holds_of(tx, owner, NOW_MS + 1000))


def dead(completion_id: str, usage: Usage | None) -> Outcome:
    """The outcome of a request whose process died a second after its hold."""
    return Outcome(
        request_id=f"req-{completion_id}",
        completion_id=completion_id,
        account_id="acct_a",
        key_id="key_a",
        class_id="forte",
        endpoint="chat",
        status=500,
        usage=usage,
        duration_ms=1000,
        ended_at=NOW_MS + 1000,
    )
