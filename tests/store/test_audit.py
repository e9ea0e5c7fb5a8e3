"""The proof of the ledger: it finds each rule that was broken behind our back, and nothing where all is well."""

import asyncio
import random

import msgspec
import pytest
from sqlalchemy import text

from cadenza.core.records import Usage
from cadenza.store import audit, ledger
from cadenza.store.audit import RULES, Counts, Finding
from cadenza.store.database import Database
from cadenza.store.ledger import Held
from cadenza.store.writer import LedgerWriter
from tests.store.moves import Progress, findings, finish, fund, make_end, make_hold, money, opened, take, writing
from tests.store.rows import DOLLAR_NANO, NOW_MS

(
    BALANCE_IS_SUM,
    HELD_IS_SUM,
    HELD_IS_COVERED,
    CHARGED_ONCE,
    SETTLED_HAS_CHARGE,
    CHARGE_HAS_HOLD,
    CHARGE_HAS_ACCOUNT,
    METERED_HAS_HOLD,
    ENDED_IS_METERED,
    METERED_IS_CHARGED,
) = RULES

NEW_ENTRY = "INSERT INTO entries (account_id, kind, amount_nano, request_id, note, created_at) VALUES "
PAY_7 = "UPDATE accounts SET balance_nano = balance_nano - 7 WHERE id = 'acct_a'"
METER = """
    INSERT INTO usage SELECT '{}', account_id, key_id, class_id, '', '', 0, 0, 0, {}, estimated, 200, stream, 0, 0, 0
    FROM usage WHERE request_id = 'settled'"""
SETTLE_OPEN = "UPDATE holds SET state = 'settled', ended_at = 0 WHERE request_id = 'open'"
GIVE_BACK_OPEN = "UPDATE accounts SET held_nano = 0 WHERE id = 'acct_a'"

# What is done by hand, and all that is then found.
BROKEN = {
    "an entry that moved nothing": (
        [NEW_ENTRY + "('acct_a', 'correction', 5, NULL, '', 0)"],
        [Finding(BALANCE_IS_SUM, "acct_a", -5)],
    ),
    "a balance without its entry": (
        ["UPDATE accounts SET balance_nano = balance_nano + 5 WHERE id = 'acct_a'"],
        [Finding(BALANCE_IS_SUM, "acct_a", 5)],
    ),
    "credit without any entry": (
        ["UPDATE accounts SET balance_nano = 9 WHERE id = 'acct_b'"],
        [Finding(BALANCE_IS_SUM, "acct_b", 9)],
    ),
    "too much is held": (
        ["UPDATE accounts SET held_nano = held_nano + 3 WHERE id = 'acct_a'"],
        [Finding(HELD_IS_SUM, "acct_a", 3)],
    ),
    "too little is held": ([GIVE_BACK_OPEN], [Finding(HELD_IS_SUM, "acct_a", -2500)]),
    "a settled hold without its charge": (
        [SETTLE_OPEN, GIVE_BACK_OPEN, METER.format("open", 0)],
        [Finding(SETTLED_HAS_CHARGE, "open", 0)],
    ),
    "a charge of a request that is not known": (
        [NEW_ENTRY + "('acct_a', 'charge', -7, 'nobody', '', 0)", PAY_7],
        [Finding(CHARGE_HAS_HOLD, "nobody", -7)],
    ),
    "a charge of a request that still runs": (
        [NEW_ENTRY + "('acct_a', 'charge', -7, 'open', '', 0)", PAY_7],
        [Finding(CHARGE_HAS_HOLD, "open", -7)],
    ),
    "a charge on the account of another": (
        [SETTLE_OPEN, GIVE_BACK_OPEN, METER.format("open", 0), NEW_ENTRY + "('acct_b', 'charge', 0, 'open', '', 0)"],
        [Finding(CHARGE_HAS_ACCOUNT, "open", 0)],
    ),
    "a metering row of a request that is not known": (
        [METER.format("nobody", 0)],
        [Finding(METERED_HAS_HOLD, "nobody", 0)],
    ),
    "a metering row on the account of another": (
        ["UPDATE usage SET account_id = 'acct_b' WHERE request_id = 'settled'"],
        [Finding(METERED_HAS_HOLD, "settled", 1210)],
    ),
    "an ended hold without its metering row": (
        ["DELETE FROM usage WHERE request_id = 'released'"],
        [Finding(ENDED_IS_METERED, "released", 0)],
    ),
    "a metering row of a request that still runs": (
        [METER.format("open", 0)],
        [Finding(ENDED_IS_METERED, "open", 0)],
    ),
    "a metering row that says more than was charged": (
        ["UPDATE usage SET cost_nano = cost_nano + 1 WHERE request_id = 'settled'"],
        [Finding(METERED_IS_CHARGED, "settled", 1)],
    ),
    "a metering row with a cost that nobody was charged": (
        [METER.format("nobody", 8)],
        [Finding(METERED_HAS_HOLD, "nobody", 8), Finding(METERED_IS_CHARGED, "nobody", 8)],
    ),
}


@pytest.fixture
async def used(db: Database) -> Database:
    """One request settled, one released and one that runs, and an account that has nothing."""
    await fund(db, DOLLAR_NANO)
    await fund(db, 0, "b")
    for request_id in ("settled", "released", "open"):
        await take(db, make_hold(request_id))
    await finish(db, make_end("settled", Usage(100, 7)))
    await finish(db, make_end("released"))
    return db


async def run_all(db: Database, *statements: str) -> None:
    async with db.write() as conn:
        for statement in statements:
            await conn.execute(text(statement))


async def test_an_empty_store_has_no_findings(db: Database) -> None:
    """Nothing is proven of nothing."""
    assert await findings(db) == []


async def test_a_store_in_use_has_no_findings(used: Database) -> None:
    """Settled, released and open requests are all in order, and are counted."""
    assert await findings(used) == []
    async with used.read() as conn:
        assert await audit.count(conn) == Counts(accounts=2, entries=2, open_holds=1, ended_holds=2)


async def test_what_is_broken_is_found_and_nothing_else(used: Database) -> None:
    """Whatever a hand with SQL does to the rows, the rule it breaks is named, with whom and by how much."""
    for name, (statements, expected) in BROKEN.items():
        async with used.write() as conn:
            for statement in statements:
                await conn.execute(text(statement))
            assert await audit.check(conn) == expected, name
            await conn.rollback()
    assert await findings(used) == []


async def test_a_second_charge_is_found(used: Database) -> None:
    """Even where the index that forbids it is gone."""
    await run_all(
        used,
        "DROP INDEX uq_entries_charge",
        NEW_ENTRY + "('acct_a', 'charge', -1210, 'settled', '', 0)",
        "UPDATE accounts SET balance_nano = balance_nano - 1210 WHERE id = 'acct_a'",
    )
    assert await findings(used) == [Finding(CHARGED_ONCE, "settled", 2)]


async def test_a_hold_that_the_balance_does_not_cover_is_found(used: Database) -> None:
    """Even where the constraint that forbids it is off."""
    balance_nano, held_nano = await money(used)
    taken_nano = balance_nano - held_nano + 4
    if used.is_sqlite:
        off, on = "PRAGMA ignore_check_constraints = ON", "PRAGMA ignore_check_constraints = OFF"
    else:
        off, on = "ALTER TABLE accounts DROP CONSTRAINT ck_accounts_balance_covers_held", "SELECT 1"
    await run_all(
        used,
        off,
        NEW_ENTRY + f"('acct_a', 'correction', {-taken_nano}, NULL, '', 0)",
        f"UPDATE accounts SET balance_nano = balance_nano - {taken_nano} WHERE id = 'acct_a'",
        on,
    )
    assert await findings(used) == [Finding(HELD_IS_COVERED, "acct_a", -4)]


async def test_several_faults_are_all_found(used: Database) -> None:
    """One fault does not hide another, of the same rule or of another one."""
    named = (
        "an entry that moved nothing",
        "credit without any entry",
        "too much is held",
        "an ended hold without its metering row",
        "a metering row that says more than was charged",
    )
    await run_all(used, *(statement for name in named for statement in BROKEN[name][0]))
    found = {(finding.rule, finding.subject, finding.off_by) for finding in await findings(used)}
    assert found == {msgspec.structs.astuple(finding) for name in named for finding in BROKEN[name][1]}


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_proof_beside_busy_writers_finds_nothing(db: Database, url: str, seed: int) -> None:
    """While two writers hold, settle and release without a pause, no proof ever sees half of a move."""
    await fund(db, 400 * 1300)
    chance = random.Random(seed)
    async with opened(url) as beside, writing(db) as (writer, _), writing(beside) as (other, _):
        spending = asyncio.gather(
            *(
                spend(one, f"{number}-{name}", chance)
                for number, one in enumerate((writer, other))
                for name in range(20)
            )
        )
        proofs = 0
        while not spending.done():
            assert await findings(db) == []
            proofs += 1
        await spending
    assert proofs > 10
    assert await findings(db) == []


async def spend(writer: LedgerWriter, name: str, chance: random.Random) -> None:
    for turn in range(10):
        request_id = f"{name}-{turn}"
        if isinstance(await writer.hold(make_hold(request_id), Progress()), Held):
            usage = chance.choice([None, Usage(100, 10), Usage(100, 90)])
            await writer.end(make_end(request_id, usage))


async def test_the_export_is_every_entry_in_order(used: Database) -> None:
    """Oldest first, with the counts of what was charged, of one account or of all."""
    await used.transact(lambda connection: ledger.grant(connection, "acct_b", 5, "", NOW_MS))
    async with used.read() as conn:
        rows = [row async for row in audit.export(conn, None)]
        own = [row async for row in audit.export(conn, "acct_b@example.org")]
        nobody = [row async for row in audit.export(conn, "nobody@example.org")]
    assert [(row["kind"], row["amount_nano"], row["completion_tokens"]) for row in rows] == [
        ("grant", DOLLAR_NANO, None),
        ("charge", -1210, 7),
        ("grant", 5, None),
    ]
    assert (own, nobody) == (rows[2:], [])
