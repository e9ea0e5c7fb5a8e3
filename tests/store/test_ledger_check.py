"""The ledger check: it finds every rule that was broken behind our back, and nothing in a sound ledger."""

import asyncio
import itertools
import random

import pytest
from sqlalchemy import text

from cadenza.core.records import Cap, Usage
from cadenza.ledger import check, credit
from cadenza.ledger.check import RULES, CheckCounts, Violation
from cadenza.ledger.export import PAGE, export
from cadenza.ledger.rules import IDEMPOTENCY_MS, HeldCredit
from cadenza.ledger.writer import LedgerWriter
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction
from cadenza.store.tables.metered import SUMS
from tests.store.moves import cap, findings, finish, fund, make_hold, make_outcome, money, opened, take, writing
from tests.store.rows import DOLLAR_NANO, NOW_MS, run_sql, sum_up

(
    BALANCE_IS_SUM,
    HELD_IS_SUM,
    HELD_IS_COVERED,
    CHARGED_ONCE,
    CHARGE_IS_METERED,
    DAYS_ARE_METERED,
    DAYS_ARE_CHARGED,
    CORRECTION_FOLLOWS,
    METERED_IS_CHARGED,
    REFUND_IS_PART,
    COSTS_ITS_COUNTS,
    WITHIN_HOLD,
    KEY_IS_CHARGED_ONCE,
    CAP_SPENT_IS_SUM,
    CAP_IS_KEPT,
    CAP_HOLDS_HAVE_CAPS,
    CAPS_ARE_MARKED,
    DEBT_IS_SUM,
    DEBT_LEAVES_NOTHING_FREE,
    PAID_DEBT_IS_SUM,
    GRANTED_IS_SUM,
    GRANTED_IS_PART,
    MONTH_BEGINS_WITH_LAST,
    MONTH_IS_SUM,
) = RULES

KEY = b"k" * 32
OTHER_KEY = b"o" * 32
NEW_ENTRY = """
    INSERT INTO entries (account_id, kind, amount_nano, completion_id, note, created_at, granted_nano, origin)
    VALUES """
GIVE_5 = "UPDATE accounts SET balance_nano = balance_nano + 5 WHERE id = 'acct_a'"
PAY = """
    UPDATE accounts SET balance_nano = balance_nano - {0}, granted_nano = granted_nano - {0} WHERE id = 'acct_a'"""
METER = """
    INSERT INTO usage (completion_id, account_id, key_id, class_id, provider, model, prompt_tokens, cached_tokens,
    completion_tokens, cost_nano, estimated, status, stream, started_at, first_byte_ms, duration_ms, request_id,
    input_nano, output_nano, short_nano, source)
    SELECT '{}', account_id, key_id, class_id, '', '', 0, 0, 0, {}, estimated, 200, stream, 0, 0, 0, request_id,
    input_nano, output_nano, 0, 'request' FROM usage WHERE completion_id = 'settled'"""
GIVE_BACK_OPEN = "UPDATE accounts SET held_nano = 0 WHERE id = 'acct_a'"

# Each change by hand, and everything that the check then finds.
BROKEN = {
    "an entry that moved nothing": (
        [NEW_ENTRY + "('acct_a', 'correction', 5, NULL, '', 0, 0, 'correction')"],
        [Violation(BALANCE_IS_SUM, "acct_a", -5)],
    ),
    "a balance without its entry": (
        ["UPDATE accounts SET balance_nano = balance_nano + 5 WHERE id = 'acct_a'"],
        [Violation(BALANCE_IS_SUM, "acct_a", 5)],
    ),
    "credit without any entry": (
        ["UPDATE accounts SET balance_nano = 9 WHERE id = 'acct_b'"],
        [Violation(BALANCE_IS_SUM, "acct_b", 9)],
    ),
    "too much is held": (
        ["UPDATE accounts SET held_nano = held_nano + 3 WHERE id = 'acct_a'"],
        [Violation(HELD_IS_SUM, "acct_a", 3)],
    ),
    "too little is held": ([GIVE_BACK_OPEN], [Violation(HELD_IS_SUM, "acct_a", -2500)]),
    "a reserve that is not held": (
        ["UPDATE reserves SET amount_nano = amount_nano + 4"],
        [Violation(HELD_IS_SUM, "acct_a", -4)],
    ),
    "a charge of an unknown request": (
        [NEW_ENTRY + "('acct_a', 'charge', -7, 'nobody', '', 0, -7, NULL)", PAY.format(7)],
        [Violation(CHARGE_IS_METERED, "nobody", -7), Violation(DAYS_ARE_CHARGED, "acct_a", -7)],
    ),
    "a charge on another account": (
        [METER.format("open", 0), NEW_ENTRY + "('acct_b', 'charge', 0, 'open', '', 0, 0, NULL)"],
        [Violation(CHARGE_IS_METERED, "open", 0)],
    ),
    "a metering row on another account": (
        ["UPDATE usage SET account_id = 'acct_b' WHERE completion_id = 'settled'"],
        [
            Violation(CHARGE_IS_METERED, "settled", -1210),
            Violation(DAYS_ARE_CHARGED, "acct_a", -1210),
            Violation(DAYS_ARE_CHARGED, "acct_b", 1210),
        ],
    ),
    "a metering row that says more than was charged": (
        ["UPDATE usage SET cost_nano = cost_nano + 1, short_nano = -1 WHERE completion_id = 'settled'"],
        [
            Violation(DAYS_ARE_CHARGED, "acct_a", 1),
            Violation(METERED_IS_CHARGED, "settled", 1),
            Violation(COSTS_ITS_COUNTS, "settled", 0),
        ],
    ),
    "a charge above its counts and prices": (
        ["UPDATE usage SET cached_tokens = 90 WHERE completion_id = 'settled'"],
        [Violation(COSTS_ITS_COUNTS, "settled", 90 * 8)],
    ),
    "a charge below its counts and prices": (
        ["UPDATE usage SET completion_tokens = 8 WHERE completion_id = 'settled'"],
        [Violation(COSTS_ITS_COUNTS, "settled", -30)],
    ),
    "a charge of another price": (
        ["UPDATE usage SET output_nano = 31 WHERE completion_id = 'settled'"],
        [Violation(COSTS_ITS_COUNTS, "settled", -7)],
    ),
    "a charge far above its hold": (
        [
            "UPDATE usage SET prompt_tokens = 1000000, cost_nano = 10000210 WHERE completion_id = 'settled'",
            NEW_ENTRY + "('acct_a', 'correction', -9999000, 'settled', '', 0, -9999000, 'late-end')",
            PAY.format(9999000),
        ],
        [Violation(WITHIN_HOLD, "settled", 10_000_210 - 2500)],
    ),
    "a correction that its metering row does not show": (
        [NEW_ENTRY + "('acct_a', 'correction', 5, 'settled', '', 0, 0, 'late-end')", GIVE_5],
        [Violation(DAYS_ARE_CHARGED, "acct_a", 5), Violation(METERED_IS_CHARGED, "settled", 5)],
    ),
    "a correction of a request that was not charged": (
        [NEW_ENTRY + "('acct_a', 'correction', 5, 'nobody', '', 0, 0, 'late-end')", GIVE_5],
        [Violation(DAYS_ARE_CHARGED, "acct_a", 5), Violation(CORRECTION_FOLLOWS, "nobody", 5)],
    ),
    "a metering row with a cost that was not charged": (
        [METER.format("nobody", 8)],
        [
            Violation(DAYS_ARE_CHARGED, "acct_a", 8),
            Violation(METERED_IS_CHARGED, "nobody", 8),
            Violation(COSTS_ITS_COUNTS, "nobody", 8),
        ],
    ),
}
OWE_5 = "UPDATE accounts SET debt_nano = 5 WHERE id = 'acct_b'"
DEBT = "INSERT INTO debts (account_id, source, note, amount_nano, left_nano, created_at) VALUES "
BROKEN |= {
    "a debt that nobody owes": ([DEBT + "('acct_b', 'dp_1', '', 5, 5, 0)"], [Violation(DEBT_IS_SUM, "acct_b", -5)]),
    "a debt without a reason": ([OWE_5], [Violation(DEBT_IS_SUM, "acct_b", 5)]),
    "a debt beside free credit": (
        [
            DEBT + "('acct_b', 'dp_1', '', 5, 5, 0)",
            "UPDATE accounts SET debt_nano = 5, balance_nano = 9 WHERE id = 'acct_b'",
            NEW_ENTRY + "('acct_b', 'grant', 9, NULL, '', 0, 0, 'payment')",
        ],
        [Violation(DEBT_LEAVES_NOTHING_FREE, "acct_b", 9)],
    ),
    "a debt that was paid without an entry": (
        [DEBT + "('acct_b', 'dp_1', '', 7, 5, 0)", OWE_5],
        [Violation(PAID_DEBT_IS_SUM, "dp_1", 2)],
    ),
}
BROKEN |= {
    "a refund of more than was charged": (
        [
            NEW_ENTRY + "('acct_a', 'correction', 1215, 'settled', '', 0, 0, 'refund')",
            "UPDATE accounts SET balance_nano = balance_nano + 1215 WHERE id = 'acct_a'",
        ],
        [Violation(REFUND_IS_PART, "settled", 5)],
    ),
    "granted credit that no entry grants": (
        ["UPDATE accounts SET granted_nano = granted_nano - 7 WHERE id = 'acct_a'"],
        [Violation(GRANTED_IS_SUM, "acct_a", -7)],
    ),
    "an entry that says too little of granted credit": (
        [
            """INSERT INTO entries (account_id, kind, amount_nano, note, created_at, granted_nano, origin)
            VALUES ('acct_a', 'grant', 5, '', 0, 3, 'grant')""",
            GIVE_5,
        ],
        [Violation(GRANTED_IS_SUM, "acct_a", -3)],
    ),
    "more granted credit than credit": (
        ["UPDATE accounts SET granted_nano = balance_nano + 4 WHERE id = 'acct_a'"],
        [Violation(GRANTED_IS_SUM, "acct_a", 4), Violation(GRANTED_IS_PART, "acct_a", -4)],
    ),
    "negative granted credit": (
        ["UPDATE accounts SET granted_nano = -4 WHERE id = 'acct_b'"],
        [Violation(GRANTED_IS_SUM, "acct_b", -4), Violation(GRANTED_IS_PART, "acct_b", 4)],
    ),
}
MONTH = """
    INSERT INTO closed_months SELECT '2026-{}', {}, {}, 1, 1, 1, 0, 0, 0, {}, 0, {}, 0, '{{}}', digest
    FROM keys LIMIT 1"""
BROKEN |= {
    "a closed month that begins with nothing": (
        [
            MONTH.format("09", 0, 1, 0, 7),
            "INSERT INTO closed_balances VALUES ('2026-09', 'acct_a', 7, 0)",
            MONTH.format("10", 1, 2, 0, 0),
        ],
        [Violation(MONTH_BEGINS_WITH_LAST, "2026-10", -7)],
    ),
    "a closed month without its balances": ([MONTH.format("09", 0, 1, 0, 7)], [Violation(MONTH_IS_SUM, "2026-09", 7)]),
}
BROKEN_CAPS = {
    "a cap that has spent more than its key": (
        ["UPDATE caps SET spent_nano = spent_nano + 5 WHERE key_id = 'key_a'"],
        [Violation(CAP_SPENT_IS_SUM, "key_a", 5)],
    ),
    "a cap of another month": (
        ["UPDATE caps SET month = month + 1 WHERE key_id = 'key_c'"],
        [Violation(CAP_SPENT_IS_SUM, "key_c", 1210)],
    ),
    "a cap that holds too much": (
        ["UPDATE cap_holds SET amount_nano = 10000 - 1210 + 6"],
        [Violation(CAP_IS_KEPT, "key_a", 6)],
    ),
    "a hold of no cap": (
        ["DELETE FROM caps WHERE key_id = 'key_a'", "UPDATE keys SET is_capped = FALSE WHERE id = 'key_a'"],
        [Violation(CAP_HOLDS_HAVE_CAPS, "key_a", 2500)],
    ),
    "a cap that no request looks for": (
        ["UPDATE keys SET is_capped = FALSE WHERE id = 'key_a'"],
        [Violation(CAPS_ARE_MARKED, "key_a", 0)],
    ),
    "a cap that no batch looks for": (
        ["UPDATE accounts SET has_caps = FALSE WHERE id = 'acct_c'"],
        [Violation(CAPS_ARE_MARKED, "key_c", 0)],
    ),
    "a key without a cap that is marked": (
        ["UPDATE keys SET is_capped = TRUE WHERE id = 'key_b'"],
        [Violation(CAPS_ARE_MARKED, "key_b", 0)],
    ),
}


@pytest.fixture
async def used(store: Store) -> Store:
    """One settled request, one released and one that runs, and an account without credit."""
    await fund(store, DOLLAR_NANO)
    await fund(store, 0, "b")
    for completion_id in ("settled", "released", "open"):
        await take(store, make_hold(completion_id))
    await finish(store, make_hold("settled"), Usage(100, 7))
    await finish(store, make_hold("released"))
    return store


@pytest.fixture
async def capped(store: Store) -> Store:
    """Two accounts with a cap, in total with a running request and by month, and one without."""
    for account in ("a", "b", "c"):
        await fund(store, DOLLAR_NANO, account)
    for account, limit in (("a", Cap(10_000)), ("c", Cap(10_000, "month"))):
        await cap(store, limit, f"key_{account}")
        await take(store, make_hold(f"settled-{account}", account=account))
        await finish(store, make_hold(f"settled-{account}", account=account), Usage(100, 7))
    await take(store, make_hold("open"))
    return store


class RollBack(Exception):
    """Raised to undo a transaction."""


async def test_a_store_in_use_has_no_findings(used: Store) -> None:
    """Settled, released and running requests are sound, and are counted."""
    assert await findings(used) == []
    assert await check.count(used) == CheckCounts(accounts=2, entries=2, requests=2, reserves=1)


async def test_each_broken_rule_is_found_and_nothing_else(used: Store) -> None:
    """For each change by hand, the check names the broken rule, its subject and by how much it is off."""
    for name, (statements, expected) in BROKEN.items():
        assert await found_after(used, statements) == expected, name
    assert await findings(used) == []


async def test_each_broken_rule_of_caps_is_found_and_nothing_else(capped: Store) -> None:
    """For each change by hand of a cap, or of what marks it, the check names the rule, the key and the difference."""
    assert await findings(capped) == []
    for name, (statements, expected) in BROKEN_CAPS.items():
        assert await found_after(capped, statements) == expected, name


async def found_after(store: Store, statements: list[str]) -> list[Violation]:
    """What the check finds after these changes and new sums by day. They are rolled back."""
    found: list[Violation] = []

    def work(tx: Transaction) -> None:
        for statement in statements:
            tx.change(Statement(text(statement)), {})
        sum_up(tx)
        found.extend(Violation(*row) for row in tx.rows(check.CHECK, {}))
        raise RollBack

    with pytest.raises(RollBack):
        await store.transact(work)
    return found


async def test_a_second_charge_is_found(used: Store) -> None:
    """Even if the index that forbids it was dropped."""
    await run_sql(
        used,
        "DROP INDEX uq_entries_charge",
        NEW_ENTRY + "('acct_a', 'charge', -1210, 'settled', '', 0, -1210, NULL)",
        PAY.format(1210),
    )
    assert await findings(used) == [
        Violation(CHARGED_ONCE, "settled", 1210),
        Violation(DAYS_ARE_CHARGED, "acct_a", -1210),
    ]


@pytest.mark.parametrize("name", SUMS)
async def test_a_wrong_sum_of_a_day_is_found(used: Store, name: str) -> None:
    """Whichever sum it is, and a day that is gone."""
    changes = [f"UPDATE usage_days SET {name} = {name} + 1", "DELETE FROM usage_days"]
    for change in changes:
        await run_sql(used, change)
        found = {one.rule for one in await findings(used)}
        assert found - {DAYS_ARE_CHARGED} == {DAYS_ARE_METERED}


@pytest.mark.parametrize(("apart_ms", "is_found"), [(IDEMPOTENCY_MS - 1, True), (IDEMPOTENCY_MS, False)])
async def test_a_key_that_was_charged_twice_is_found(store: Store, apart_ms: int, is_found: bool) -> None:
    """Two charges of one account with one idempotency key within 24 hours; not of two accounts, or of two keys."""
    for account in ("a", "b"):
        await fund(store, DOLLAR_NANO, account)
    holds = [
        make_hold("r1", key=KEY),
        make_hold("r2", key=OTHER_KEY, started_at=NOW_MS + apart_ms),
        make_hold("r3", key=KEY, account="b"),
        make_hold("r4", key=b"p" * 32),
    ]
    for hold in holds:
        await take(store, hold)
        await finish(store, hold, Usage(100, 7))
    assert await findings(store) == []
    await run_sql(
        store,
        "UPDATE usage SET idempotency_digest = (SELECT u.idempotency_digest FROM usage u WHERE u.completion_id = 'r1')"
        " WHERE completion_id = 'r2'",
    )
    assert await findings(store) == ([Violation(KEY_IS_CHARGED_ONCE, "r2", 1210)] if is_found else [])


async def test_a_hold_that_the_balance_does_not_cover_is_found(used: Store) -> None:
    """Even if the constraint that forbids it is off."""
    balance_nano, held_nano = await money(used)
    taken_nano = balance_nano - held_nano + 4
    if isinstance(used, SqliteStore):
        off, on = "PRAGMA ignore_check_constraints = ON", "PRAGMA ignore_check_constraints = OFF"
    else:
        off, on = "ALTER TABLE accounts DROP CONSTRAINT ck_accounts_balance_covers_held", "SELECT 1"
    await run_sql(
        used,
        off,
        NEW_ENTRY + f"('acct_a', 'correction', {-taken_nano}, NULL, '', 0, {-taken_nano}, 'correction')",
        PAY.format(taken_nano),
        on,
    )
    assert await findings(used) == [Violation(HELD_IS_COVERED, "acct_a", -4)]


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_check_beside_busy_writers_finds_nothing(store: Store, url: str, seed: int) -> None:
    """While two writers hold, settle and release without a pause, no check sees half of a move."""
    await fund(store, 400 * 1300)
    chance = random.Random(seed)
    async with opened(url) as beside, writing(store) as (writer, _), writing(beside) as (other, _):
        is_enough = asyncio.Event()
        spending = asyncio.gather(
            *(
                spend(one, f"{number}-{name}", chance, is_enough)
                for number, one in enumerate((writer, other))
                for name in range(20)
            )
        )
        checks = 0
        while not spending.done():
            assert await findings(store) == []
            checks += 1
            if checks > 10:
                is_enough.set()
        await spending
    assert await findings(store) == []


async def spend(writer: LedgerWriter, name: str, chance: random.Random, is_enough: asyncio.Event) -> None:
    """Ten requests, and more until there were enough checks."""
    turns = itertools.count()
    while (turn := next(turns)) < 10 or not is_enough.is_set():
        completion_id = f"{name}-{turn}"
        if isinstance(await writer.hold(make_hold(completion_id)), HeldCredit):
            usage = chance.choice([None, Usage(100, 10), Usage(100, 90)])
            await writer.end(make_outcome(completion_id, usage))


async def test_the_export_is_every_entry_in_order(used: Store) -> None:
    """Oldest first, with both ids and the counts of each charge, of one account or of all."""
    await used.transact(lambda tx: credit.grant(tx, "acct_b", 5, "", NOW_MS))
    rows = [row async for row in export(used, None)]
    own = [row async for row in export(used, "acct_b@example.org")]
    nobody = [row async for row in export(used, "nobody@example.org")]
    assert [(row["kind"], row["amount_nano"], row["completion_tokens"]) for row in rows] == [
        ("grant", DOLLAR_NANO, None),
        ("charge", -1210, 7),
        ("grant", 5, None),
    ]
    assert [(row["completion_id"], row["request_id"]) for row in rows] == [
        (None, None),
        ("settled", "req-settled"),
        (None, None),
    ]
    assert (own, nobody) == (rows[2:], [])


async def test_an_export_longer_than_a_page_is_complete(store: Store) -> None:
    """Entries beyond the first page follow in order, without a gap or a repetition."""
    await fund(store, 0)
    amounts = range(1, PAGE + 3)

    def grant_all(tx: Transaction) -> None:
        for amount_nano in amounts:
            credit.grant(tx, "acct_a", amount_nano, "", NOW_MS)

    await store.transact(grant_all)
    assert [row["amount_nano"] async for row in export(store, None)] == list(amounts)
