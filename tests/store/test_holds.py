"""Holds: taken whole, fitted or not at all; ended once, at the prices they were taken at; and the money in between."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import msgspec
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from cadenza.core.money import Price
from cadenza.core.records import OUTPUT_TOKENS_MAX, Usage
from cadenza.store import ledger
from cadenza.store.database import Database, StoreRefused, migrate
from cadenza.store.ledger import Ended, Held, Insufficient
from cadenza.store.schema import accounts, entries, holds, usage
from tests.postgres import Postgres
from tests.store.moves import (
    PRICE,
    come_to_wait,
    findings,
    finish,
    fund,
    make_end,
    make_hold,
    mark_of,
    money,
    postgres_store,
    state_of,
    take,
)
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of

PROMPT_NANO = 100 * 10  # what the prompt of an ordinary hold costs
WHOLE_NANO = PROMPT_NANO + 50 * 30  # and all of it
SHORT_NANO = PROMPT_NANO + 16 * 30  # and the least that is answered


@pytest.fixture
async def rich(db: Database) -> AsyncIterator[Database]:
    """A dollar on the account; whatever a test does, the ledger holds at its end."""
    await fund(db, DOLLAR_NANO)
    yield db
    assert await findings(db) == []


async def charges(db: Database) -> list[int]:
    return [entry.amount_nano for entry in await rows_of(db, entries) if entry.kind == "charge"]


async def test_the_whole_allowance_is_held(rich: Database) -> None:
    """Where the account can pay, the prompt and all of the output asked for are held and nothing is charged."""
    assert await take(rich, make_hold()) == Held(50, DOLLAR_NANO - WHOLE_NANO)
    assert await money(rich) == (DOLLAR_NANO, WHOLE_NANO)
    assert await charges(rich) == []


async def test_a_hold_keeps_what_ending_it_needs(rich: Database) -> None:
    """The row carries ids, counts, prices, owner and time, and is open."""
    await take(rich, make_hold(), "proc_x")
    (row,) = await rows_of(rich, holds)
    assert row._asdict() == {
        "request_id": "r1",
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


async def test_the_allowance_is_fitted_to_the_nano(db: Database) -> None:
    """As many output tokens are held as can be paid beside the prompt, neither one more nor one less."""
    payable = {0: 50, 1: 49, 30: 49, 31: 48, 601: 29, 34 * 30: 16}
    for missing_nano, tokens in payable.items():
        free_nano, held_nano = WHOLE_NANO - missing_nano, PROMPT_NANO + tokens * 30
        account = f"{missing_nano}"
        await fund(db, free_nano, account)
        assert await take(db, make_hold(f"r{account}", account=account)) == Held(tokens, free_nano - held_nano)
        assert await money(db, account) == (free_nano, held_nano)
    assert await findings(db) == []


async def test_less_than_a_short_answer_is_insufficient(db: Database) -> None:
    """Below the prompt and 16 tokens nothing is held, and the answer says what there is and what is needed."""
    for free_nano in (SHORT_NANO - 1, PROMPT_NANO, PROMPT_NANO - 1, 0):
        account = f"{free_nano}"
        await fund(db, free_nano, account)
        assert await take(db, make_hold(account=account)) == Insufficient(free_nano, SHORT_NANO)
        assert await money(db, account) == (free_nano, 0)
    assert await rows_of(db, holds) == []


async def test_a_request_for_less_than_16_needs_only_that(db: Database) -> None:
    """A request for 3 tokens is held for 3, and is not asked for 16 where it cannot pay."""
    await fund(db, PROMPT_NANO + 3 * 30, "a")
    await fund(db, PROMPT_NANO + 3 * 30 - 1, "b")
    assert await take(db, make_hold("r1", allowance_tokens=3)) == Held(3, 0)
    assert await take(db, make_hold("r2", allowance_tokens=3, account="b")) == Insufficient(1089, 1090)


async def test_what_is_held_cannot_be_held_again(db: Database) -> None:
    """The second hold is fitted to what the first left, and the third finds nothing."""
    await fund(db, WHOLE_NANO + PROMPT_NANO + 20 * 30)
    answers = [await take(db, make_hold(f"r{number}")) for number in range(3)]
    assert answers == [Held(50, PROMPT_NANO + 20 * 30), Held(20, 0), Insufficient(0, PROMPT_NANO + 16 * 30)]
    assert await findings(db) == []


async def test_a_price_of_zero_needs_no_credit(db: Database) -> None:
    """A class that costs nothing is held for nothing and charged nothing."""
    await fund(db, 0)
    assert await take(db, make_hold(price=Price(0, 0))) == Held(50, 0)
    assert await finish(db, make_end(usage=Usage(100, 50))) == Ended(is_first=True)
    assert await charges(db) == [0]
    assert await findings(db) == []


async def test_free_output_is_never_fitted(db: Database) -> None:
    """Where output costs nothing, the prompt alone decides, and all of the output is allowed."""
    await fund(db, PROMPT_NANO)
    hold = make_hold(price=Price(10, 0), allowance_tokens=OUTPUT_TOKENS_MAX, prompt_tokens=101)
    assert await take(db, hold) == Insufficient(PROMPT_NANO, PROMPT_NANO + 10)
    assert await take(db, msgspec.structs.replace(hold, prompt_tokens=100)) == Held(OUTPUT_TOKENS_MAX, 0)


async def test_a_request_id_is_held_once(rich: Database) -> None:
    """A second hold of the same request is refused, and moves nothing."""
    await take(rich, make_hold())
    with pytest.raises(StoreRefused):
        await take(rich, make_hold(allowance_tokens=7))
    assert await money(rich) == (DOLLAR_NANO, WHOLE_NANO)


async def test_accounts_do_not_touch_each_other(rich: Database) -> None:
    """Neither a hold nor its end moves another account."""
    await fund(rich, 5000, "b")
    await take(rich, make_hold("r1"))
    await take(rich, make_hold("r2", account="b"))
    await finish(rich, make_end("r2", Usage(100, 10), account="b"))
    assert [await money(rich), await money(rich, "b")] == [(DOLLAR_NANO, WHOLE_NANO), (5000 - 1300, 0)]


async def test_the_charge_is_what_was_used(rich: Database) -> None:
    """Below, at and above the hold: the usage is charged to the nano, and the hold given back whole."""
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
        assert await finish(rich, make_end(f"r{number}", counted)) == Ended(True, charged_nano=cost_nano)
        balance_nano -= cost_nano
        assert await money(rich) == (balance_nano, 0)
        assert await state_of(rich, f"r{number}") == "settled"
    assert await charges(rich) == [-cost_nano for cost_nano in costs_nano.values()]


async def test_cached_tokens_without_a_price_cost_as_input(rich: Database) -> None:
    """No cached price was snapshotted, so none is charged."""
    await take(rich, make_hold(price=Price(10, 30)))
    assert await finish(rich, make_end(usage=Usage(100, 0, cached_tokens=60))) == Ended(True, charged_nano=1000)


async def test_a_charge_is_made_at_the_prices_of_its_hold(rich: Database) -> None:
    """Another price on a later hold changes nothing for the one that is open."""
    await take(rich, make_hold("r1"))
    await take(rich, make_hold("r2", price=Price(10_000, 30_000, 2000)))
    assert await finish(rich, make_end("r1", Usage(100, 10))) == Ended(True, charged_nano=1300)
    assert await finish(rich, make_end("r2", Usage(100, 10))) == Ended(True, charged_nano=1_300_000)


async def test_a_charge_above_the_hold_takes_what_is_free(db: Database) -> None:
    """It is capped at the hold and all that nobody holds; what is missing is said, and the balance ends at zero."""
    await fund(db, WHOLE_NANO + 100)
    await take(db, make_hold())
    assert await finish(db, make_end(usage=Usage(100, 54))) == Ended(True, WHOLE_NANO + 100, short_nano=20)
    assert await money(db) == (0, 0)
    assert await findings(db) == []


async def test_a_charge_never_takes_what_others_hold(db: Database) -> None:
    """With nothing free, a charge stays within its own hold, and the other request is still paid for."""
    await fund(db, 2 * WHOLE_NANO)
    await take(db, make_hold("r1"))
    await take(db, make_hold("r2"))
    assert await finish(db, make_end("r1", Usage(100, 60))) == Ended(True, WHOLE_NANO, short_nano=300)
    assert await money(db) == (WHOLE_NANO, WHOLE_NANO)
    assert await finish(db, make_end("r2", Usage(100, 50))) == Ended(True, WHOLE_NANO)
    assert await findings(db) == []


async def test_a_release_costs_nothing(rich: Database) -> None:
    """The hold is given back, no entry is made, and the metering row says zero."""
    await take(rich, make_hold())
    assert await finish(rich, make_end(status=502)) == Ended(is_first=True)
    assert await money(rich) == (DOLLAR_NANO, 0)
    assert (await charges(rich), await state_of(rich)) == ([], "released")
    (row,) = await rows_of(rich, usage)
    assert (row.status, row.prompt_tokens, row.completion_tokens, row.cost_nano) == (502, 0, 0, 0)


async def test_the_metering_row_says_what_was_served(rich: Database) -> None:
    """One row per request: ids, route, counts, cost, status and timings."""
    await take(rich, make_hold())
    await finish(rich, make_end(usage=Usage(100, 7, cached_tokens=40, estimated=True)))
    (row,) = await rows_of(rich, usage)
    assert row._asdict() == {
        "request_id": "r1",
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


async def test_a_hold_ends_once(rich: Database) -> None:
    """Settled or released, the second end does nothing, says so and leaves the first one's rows."""
    for number, (first, second) in enumerate(itertools.product((Usage(100, 7), None), (Usage(100, 50), None))):
        await take(rich, make_hold(f"r{number}"))
        assert (await finish(rich, make_end(f"r{number}", first))).is_first
        before = [await rows_of(rich, table) for table in (accounts, entries, usage, holds)]
        assert await finish(rich, make_end(f"r{number}", second)) == Ended(is_first=False)
        assert [await rows_of(rich, table) for table in (accounts, entries, usage, holds)] == before


async def test_the_end_of_an_unknown_request_does_nothing(rich: Database) -> None:
    """A request that holds nothing is neither charged nor metered, nor is one that another holds."""
    await take(rich, make_hold())
    for counted in (Usage(100, 7), None):
        assert await finish(rich, make_end("r9", counted)) == Ended(is_first=False)
    assert await money(rich) == (DOLLAR_NANO, WHOLE_NANO)
    assert (await charges(rich), await rows_of(rich, usage)) == ([], [])


async def test_a_usage_below_zero_moves_nothing(rich: Database) -> None:
    """Counts that would credit the account are a fault of ours, and the hold stays open."""
    await take(rich, make_hold())
    for absurd in (Usage(100, -1), Usage(-1, 0), Usage(100, 0, cached_tokens=101), Usage(100, 0, cached_tokens=-1)):
        with pytest.raises(AssertionError):
            await finish(rich, make_end(usage=absurd))
    assert await money(rich) == (DOLLAR_NANO, WHOLE_NANO)
    assert await state_of(rich) == "open"


async def test_what_was_granted_is_spent_or_left(rich: Database) -> None:
    """Over many requests, grants less charges are the balance, whatever was held meanwhile."""
    for number in range(20):
        await take(rich, make_hold(f"r{number}"))
    ended = [
        await finish(rich, make_end(f"r{number}", Usage(100, number) if number % 3 else None)) for number in range(20)
    ]
    charged_nano = sum(1000 + number * 30 for number in range(20) if number % 3)
    assert sum(end.charged_nano for end in ended) == charged_nano
    assert await money(rich) == (DOLLAR_NANO - charged_nano, 0)


async def test_a_mark_goes_forward_only(rich: Database) -> None:
    """A later, smaller mark changes nothing, and the others of its batch are written."""
    for request_id in ("r1", "r2"):
        await take(rich, make_hold(request_id))
    await mark(rich, {"r1": 9, "r2": 1})
    await mark(rich, {})
    await mark(rich, {"r1": 4, "r2": 2, "r9": 5})
    assert [await mark_of(rich, "r1"), await mark_of(rich, "r2")] == [9, 2]


async def test_a_mark_never_touches_what_has_ended(rich: Database) -> None:
    """A mark that comes after the end leaves the hold as it ended."""
    for request_id, counted in (("r1", Usage(100, 7)), ("r2", None)):
        await take(rich, make_hold(request_id))
        await finish(rich, make_end(request_id, counted))
    before = await rows_of(rich, holds)
    await mark(rich, {"r1": 40, "r2": 40})
    assert await rows_of(rich, holds) == before


async def test_a_dead_process_is_settled_by_its_marks(rich: Database) -> None:
    """What was delivered is charged with its prompt as estimated, what was not is released; other owners stay."""
    for request_id, owner in (("r1", "proc_a"), ("r2", "proc_a"), ("r3", "proc_b")):
        await take(rich, make_hold(request_id), owner)
    await mark(rich, {"r1": 7, "r3": 9})
    assert await end_all_of(rich, "proc_a") == 2
    assert await money(rich) == (DOLLAR_NANO - 1210, WHOLE_NANO)
    assert [await state_of(rich, request_id) for request_id in ("r1", "r2", "r3")] == ["settled", "released", "open"]
    metered = {row.request_id: row for row in await rows_of(rich, usage)}
    assert (metered["r1"].completion_tokens, metered["r1"].estimated, metered["r1"].cost_nano) == (7, True, 1210)
    assert (metered["r1"].status, metered["r2"].status, metered["r1"].duration_ms) == (500, 500, 1000)
    assert await end_all_of(rich, "proc_a") == 0
    assert await rich.transact(ledger.owners_with_open_holds) == ["proc_b"]


async def test_a_mark_above_the_hold_is_charged_as_far_as_the_account_can(db: Database) -> None:
    """A crash after more was delivered than was held takes what is free, and never goes below zero."""
    await fund(db, WHOLE_NANO + 10)
    await take(db, make_hold())
    await mark(db, {"r1": 500})
    assert await end_all_of(db, "proc_a") == 1
    assert await money(db) == (0, 0)
    assert await findings(db) == []


async def test_a_process_gone_for_long_is_still_swept(rich: Database) -> None:
    """Holds left open by a crash of 25 days ago (more than 2**31 ms) are ended like those of yesterday."""
    await take(rich, make_hold(started_at=NOW_MS - 25 * 86_400_000))
    assert await end_all_of(rich, "proc_a") == 1
    assert await money(rich) == (DOLLAR_NANO, 0)


async def test_a_clock_that_went_back_does_not_stop_the_sweep(rich: Database) -> None:
    """A hold from the future is ended with no duration."""
    await take(rich, make_hold(started_at=NOW_MS + 86_400_000))
    assert await end_all_of(rich, "proc_a") == 1
    assert [row.duration_ms for row in await rows_of(rich, usage)] == [0]


async def test_an_older_store_keeps_its_money(empty: Database) -> None:
    """Credit granted before there were holds is whole after the upgrade, proven, guarded, and can be spent."""
    async with empty.write() as conn:
        await conn.run_sync(upgrade_to, "0001")
    await fund(empty, DOLLAR_NANO)
    await migrate(empty)
    assert (await money(empty), await findings(empty)) == ((DOLLAR_NANO, 0), [])
    with pytest.raises(StoreRefused, match="append-only"):
        async with empty.write() as conn:
            await conn.execute(text("UPDATE entries SET amount_nano = 2 * amount_nano"))
    assert await take(empty, make_hold()) == Held(50, DOLLAR_NANO - WHOLE_NANO)
    assert await finish(empty, make_end(usage=Usage(100, 50))) == Ended(True, WHOLE_NANO)
    assert await findings(empty) == []


async def test_holds_of_one_instant_never_overdraw(db: Database) -> None:
    """Forty transactions at once on credit for three: three are held, whatever order they come in."""
    await fund(db, 3 * PRICE.quote(100, 16) + 5)
    wanted = [make_hold(f"r{number}", allowance_tokens=16) for number in range(40)]
    answers = await asyncio.gather(*(take(db, hold) for hold in wanted))
    assert sum(isinstance(answer, Held) for answer in answers) == 3
    assert await money(db) == (3 * PRICE.quote(100, 16) + 5, 3 * PRICE.quote(100, 16))


async def test_a_charge_that_waits_for_another_takes_what_it_left(postgres: Postgres) -> None:
    """A charge that was too much when it was tried, and no longer is once the other has ended, is made whole."""
    async with postgres_store(postgres) as (db, _):
        await fund(db, 2 * WHOLE_NANO)
        for request_id in ("r1", "r2"):
            await take(db, make_hold(request_id))
        async with db.write() as conn:
            await conn.run_sync(ledger.end_hold, make_end("r2"))
            charging = asyncio.create_task(finish(db, make_end("r1", Usage(100, 60))))
            assert await come_to_wait(db, 1)
        assert await charging == Ended(True, charged_nano=2800)
        assert (await money(db), await findings(db)) == ((2 * WHOLE_NANO - 2800, 0), [])


async def mark(db: Database, delivered: dict[str, int]) -> None:
    marks = {request_id: Usage(100, tokens) for request_id, tokens in delivered.items()}
    await db.transact(lambda connection: ledger.mark_delivered(connection, marks))


async def end_all_of(db: Database, owner: str) -> int:
    return await db.transact(lambda connection: ledger.end_holds_of(connection, owner, NOW_MS + 1000))


def upgrade_to(connection: Connection, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", "cadenza.store:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
