"""Idempotency keys: one request within a day, at the same instant too; given back where nothing came of it."""

import asyncio

from sqlalchemy import text

from cadenza.core.records import Usage
from cadenza.store import ledger
from cadenza.store.database import Database
from cadenza.store.ledger import IDEMPOTENCY_MS, Held, Insufficient, Repeated
from tests.postgres import Postgres
from tests.store.moves import (
    come_to_wait,
    findings,
    finish,
    fund,
    make_end,
    make_hold,
    money,
    postgres_store,
    take,
)
from tests.store.rows import DOLLAR_NANO, NOW_MS

KEY = b"k" * 32
OTHER_KEY = b"o" * 32
SEEN = Repeated("r1", "shown-r1")


async def keys_kept(db: Database) -> int:
    async with db.read() as conn:
        return int((await conn.execute(text("SELECT count(*) FROM idempotency"))).scalar_one())


async def test_a_key_is_seen_while_its_request_runs_and_after(db: Database) -> None:
    """The second request is told the first one's ids, holds nothing, and pays nothing."""
    await fund(db, DOLLAR_NANO)
    assert isinstance(await take(db, make_hold("r1", key=KEY)), Held)
    held = await money(db)
    assert await take(db, make_hold("r2", key=KEY)) == SEEN
    assert await money(db) == held
    await finish(db, make_end("r1", Usage(100, 7)))
    assert await take(db, make_hold("r3", key=KEY)) == SEEN
    assert await money(db) == (DOLLAR_NANO - 1210, 0)
    assert await findings(db) == []


async def test_keys_belong_to_their_account(db: Database) -> None:
    """Another key of the account and the same key of another account are both new."""
    await fund(db, DOLLAR_NANO)
    await fund(db, DOLLAR_NANO, "b")
    wanted = [make_hold("r1", key=KEY), make_hold("r2", key=OTHER_KEY), make_hold("r3", key=KEY, account="b")]
    assert [type(await take(db, hold)) for hold in wanted] == [Held, Held, Held]


async def test_a_released_request_gives_its_key_back(db: Database) -> None:
    """What was not charged may be tried again under the same key, which is then seen again."""
    await fund(db, DOLLAR_NANO)
    await take(db, make_hold("r1", key=KEY))
    await finish(db, make_end("r1"))
    assert isinstance(await take(db, make_hold("r2", key=KEY)), Held)
    assert await take(db, make_hold("r3", key=KEY)) == Repeated("r2", "shown-r2")


async def test_a_request_that_was_charged_nothing_keeps_its_key(db: Database) -> None:
    """Zero is a charge: the reply was given."""
    await fund(db, DOLLAR_NANO)
    await take(db, make_hold("r1", key=KEY))
    await finish(db, make_end("r1", Usage(0, 0)))
    assert await take(db, make_hold("r2", key=KEY)) == SEEN


async def test_a_key_is_good_again_after_a_day(db: Database) -> None:
    """A millisecond before 24 hours it is seen, at 24 hours it is new, and then seen for another day."""
    await fund(db, DOLLAR_NANO)
    await take(db, make_hold("r1", key=KEY))
    await finish(db, make_end("r1", Usage(100, 7)))
    assert await take(db, make_hold("r2", key=KEY, started_at=NOW_MS + IDEMPOTENCY_MS - 1)) == SEEN
    assert isinstance(await take(db, make_hold("r3", key=KEY, started_at=NOW_MS + IDEMPOTENCY_MS)), Held)
    assert await take(db, make_hold("r4", key=KEY, started_at=NOW_MS + IDEMPOTENCY_MS + 1)) == Repeated(
        "r3", "shown-r3"
    )


async def test_insufficient_credit_leaves_no_key(db: Database) -> None:
    """A request that could not be paid may come again under its key once there is credit."""
    await fund(db, 10)
    assert isinstance(await take(db, make_hold("r1", key=KEY)), Insufficient)
    assert await keys_kept(db) == 0
    await db.transact(lambda connection: ledger.grant(connection, "acct_a", DOLLAR_NANO, "", NOW_MS))
    assert isinstance(await take(db, make_hold("r2", key=KEY)), Held)


async def test_old_keys_are_forgotten(db: Database) -> None:
    """A sweep removes what is more than a day old, and nothing younger."""
    await fund(db, DOLLAR_NANO)
    await take(db, make_hold("r1", key=KEY))
    await take(db, make_hold("r2", key=OTHER_KEY, started_at=NOW_MS + 1))
    await db.transact(lambda connection: ledger.forget_old_keys(connection, NOW_MS + IDEMPOTENCY_MS))
    assert await keys_kept(db) == 2
    await db.transact(lambda connection: ledger.forget_old_keys(connection, NOW_MS + IDEMPOTENCY_MS + 1))
    assert await keys_kept(db) == 1


async def test_of_many_at_one_instant_one_is_held(db: Database) -> None:
    """Twenty transactions at once with one key: one is held, and the others are told of it."""
    await fund(db, DOLLAR_NANO)
    answers = await asyncio.gather(*(take(db, make_hold(f"r{number}", key=KEY)) for number in range(20)))
    (held,) = [f"r{number}" for number, answer in enumerate(answers) if isinstance(answer, Held)]
    assert answers.count(Repeated(held, f"shown-{held}")) == 19


async def test_of_two_retries_at_one_instant_one_is_held(postgres: Postgres) -> None:
    """Two that both find a released key, and both go to replace it, are not both held."""
    async with postgres_store(postgres) as (db, _):
        await fund(db, DOLLAR_NANO)
        await take(db, make_hold("r1", key=KEY))
        await finish(db, make_end("r1"))

        async with db.write() as other:
            await other.execute(text("SELECT * FROM idempotency FOR UPDATE"))
            retries = [asyncio.create_task(take(db, make_hold(name, key=KEY))) for name in ("r2", "r3")]
            assert await come_to_wait(db, 2)
        answers = await asyncio.gather(*retries)
        assert sorted(type(answer).__name__ for answer in answers) == ["Held", "Repeated"]
