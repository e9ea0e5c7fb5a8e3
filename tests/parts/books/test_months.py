"""Closed months on both databases: what a close writes, what protects it, and what finds a change behind our back."""

import asyncio
from datetime import UTC, datetime

import pytest

from cadenza.control.money.statement import check_ledger
from cadenza.core.errors import ControlError
from cadenza.core.records import COMMAND_LINE, Usage
from cadenza.core.spans import month_span
from cadenza.ledger import credit
from cadenza.ledger.months import ClosedMonth
from cadenza.parts.books.closing import GRACE_MS, close_month, seal
from cadenza.parts.books.margins import report_margin
from cadenza.parts.books.months import report_month
from cadenza.parts.books.proof import check_all, verify_month
from cadenza.store import schema
from cadenza.store.schema import entries
from cadenza.store.statements import Statement
from cadenza.store.store import Store, StoreRefused
from tests.store.aside import transaction
from tests.store.moves import come_to_wait, findings, finish, fund, make_hold, take
from tests.store.rows import DOLLAR_NANO, rows_of, run_sql, sum_up


def at(day: str) -> int:
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000)


OCTOBER, NOVEMBER, DECEMBER, LATER = at("2026-10-15"), at("2026-11-15"), at("2026-12-15"), at("2027-01-15")
COST_NANO = 100 * 10 + 7 * 30
EVERYTHING = {  # of an entry but its id and its time
    "account_id": "acct_a",
    "kind": "correction",
    "amount_nano": 5,
    "completion_id": "chatcmpl-a",
    "note": "a note",
    "source": "late-end:chatcmpl-a",
    "debt_id": 3,
    "origin": "late-end",
    "granted_nano": 2,
}


async def serve(store: Store, completion_id: str, at_ms: int, account: str = "a") -> None:
    """One request that is charged COST_NANO and ends at this time."""
    hold = make_hold(completion_id, started_at=at_ms - 9, account=account)
    await take(store, hold)
    await finish(store, hold, Usage(100, 7))


@pytest.fixture
async def used(store: Store) -> Store:
    """Credit and a charge in October, and a charge in November."""
    for account in ("a", "b"):
        await fund(store, 0, account)
    await store.transact(lambda tx: credit.grant(tx, "acct_a", DOLLAR_NANO, "a gift", OCTOBER))
    await serve(store, "october", OCTOBER)
    await serve(store, "november", NOVEMBER)
    return store


async def close(store: Store, month: str, now_ms: int = LATER) -> ClosedMonth:
    return await close_month(store, month, COMMAND_LINE, now_ms)


async def test_a_closed_month_has_its_sums_and_balances(used: Store) -> None:
    """Each month begins with what the month before closed with, and the report says what was closed."""
    october, november = await close(used, "2026-10"), await close(used, "2026-11")
    assert (october.entries, october.requests, october.opening_nano) == (2, 1, 0)
    assert october.closing_nano == october.closing_granted_nano == november.opening_nano == DOLLAR_NANO - COST_NANO
    assert (november.entries, november.closing_nano) == (1, DOLLAR_NANO - 2 * COST_NANO)
    assert october.hash != november.hash
    report = await report_month(used, "2026-11", LATER)
    assert report.closed == november
    assert report.sums.closing.amount_nano == november.closing_nano
    kept = [(row.month, row.account_id, row.balance_nano) for row in await rows_of(used, schema.closed_balances)]
    assert sorted(kept) == [
        ("2026-10", "acct_a", october.closing_nano),
        ("2026-11", "acct_a", november.closing_nano),
    ]
    assert await findings(used) == []
    with pytest.raises(ValueError, match="2027-02 has not begun"):
        await report_month(used, "2027-02", LATER)


async def test_the_check_begins_with_the_last_closed_month(used: Store) -> None:
    """It reads what came since, finds what is wrong there, and with all months what was changed in a closed one."""
    await close(used, "2026-10")
    await close(used, "2026-11")
    await serve(used, "december", DECEMBER)
    sound = await check_ledger(used)
    assert (sound.findings, sound.counts.entries, sound.counts.requests) == ([], 1, 1)
    assert (await check_all(used)).findings == []
    await run_sql(
        used,
        "UPDATE accounts SET balance_nano = balance_nano + 1, granted_nano = granted_nano - 2 WHERE id = 'acct_a'",
        "UPDATE usage SET cost_nano = cost_nano + 1 WHERE completion_id = 'december'",
        "UPDATE usage SET cost_nano = cost_nano + 1 WHERE completion_id = 'october'",
    )
    await used.transact(sum_up)
    found = [(one.subject, one.off_by) for one in (await check_ledger(used)).findings]
    assert found == [("acct_a", 1), ("december", 1), ("december", 1), ("acct_a", -2)]
    assert ("october", 1) in [(one.subject, one.off_by) for one in (await check_all(used)).findings]


async def test_a_month_that_must_not_be_closed_is_refused(used: Store) -> None:
    """Before it is over, a moment after midnight, before an earlier month, twice, and while the ledger is not sound."""
    for month, now_ms, reason in (
        ("2026-10", OCTOBER, "can be closed after 2026-11-01T00:10:00Z"),
        ("2026-10", at("2026-11-01") + GRACE_MS - 1, "can be closed after"),
        ("2026-11", LATER, "Close 2026-10 first"),
    ):
        with pytest.raises(ControlError, match=reason):
            await close(used, month, now_ms)
    await run_sql(used, "UPDATE accounts SET balance_nano = balance_nano + 1 WHERE id = 'acct_a'")
    with pytest.raises(ControlError, match="not sound"):
        await close(used, "2026-10")
    await run_sql(used, "UPDATE accounts SET balance_nano = balance_nano - 1 WHERE id = 'acct_a'")
    await close(used, "2026-10", at("2026-11-01") + GRACE_MS)
    with pytest.raises(ControlError, match="closed already"):
        await close(used, "2026-10")
    with pytest.raises(ControlError, match="A later month"):
        await close(used, "2026-09")


async def test_a_late_entry_is_dated_in_the_first_open_month(used: Store) -> None:
    """Whatever the clock of its writer says: with all of its columns, and the closed month does not change."""
    closed = await close(used, "2026-10")
    await serve(used, "late", OCTOBER)
    assert (await check_ledger(used)).findings == [], "it reads the first millisecond of the open part"
    await run_sql(used, "UPDATE accounts SET balance_nano = balance_nano + 5, granted_nano = granted_nano + 2")
    values = {**EVERYTHING, "created_at": OCTOBER}
    await used.transact(lambda tx: tx.change(Statement(entries.insert(), *values), values))
    late, by_hand = (await rows_of(used, entries))[-2:]
    assert (late.completion_id, late.created_at) == ("late", closed.ends_at)
    assert by_hand._asdict() == {**EVERYTHING, "id": by_hand.id, "created_at": closed.ends_at}
    assert set(EVERYTHING) | {"id", "created_at"} == set(entries.c.keys())
    assert (await verify_month(used, "2026-10")).problems == []
    assert (await report_month(used, "2026-11", LATER)).sums.requests == 2
    margin = await report_margin(used, month_span("2026-11"), "month")  # with the first entry of its first millisecond
    assert margin.credit.granted_nano == 2 * COST_NANO - 2


async def test_an_entry_by_a_clock_that_is_behind_is_in_its_own_month_only(used: Store) -> None:
    """Its id is above that of an entry of the next month."""
    await serve(used, "behind", OCTOBER)
    october, november = await close(used, "2026-10"), await close(used, "2026-11")
    assert (october.entries, november.entries) == (3, 1)
    assert november.opening_nano == october.closing_nano
    assert (await check_all(used)).findings == []


async def test_a_month_is_closed_to_its_last_millisecond(used: Store) -> None:
    """An entry of the last one is dated in the next month, and one of the first open one stays as it is."""
    closed = await close(used, "2026-10")
    for at_ms in (closed.ends_at - 1, closed.ends_at, closed.ends_at + 1):
        await used.transact(lambda tx, at_ms=at_ms: credit.grant(tx, "acct_a", 1, "", at_ms))  # type: ignore[misc]
    times = [row.created_at for row in (await rows_of(used, entries))[-3:]]
    assert times == [closed.ends_at, closed.ends_at, closed.ends_at + 1]
    assert (await verify_month(used, "2026-10")).problems == []


async def test_a_transaction_in_flight_is_in_the_closed_month(used: Store, url: str) -> None:
    """The seal waits for a transaction that has written an entry, which then is a part of the month."""
    async with transaction(url) as other:
        await other.execute(
            "INSERT INTO entries (account_id, kind, amount_nano, note, created_at, granted_nano, origin)"
            f" VALUES ('acct_b', 'grant', 7, '', {OCTOBER}, 7, 'grant')"
        )
        await other.execute("UPDATE accounts SET balance_nano = 7, granted_nano = 7 WHERE id = 'acct_b'")
        closing = asyncio.create_task(close(used, "2026-10"))
        if used.is_shared_by_machines:
            assert await come_to_wait(used, 1)
    assert (await closing).entries == 3
    assert await findings(used) == []


async def test_an_interrupted_close_is_taken_up(used: Store) -> None:
    """A month that is only sealed takes no entries, and the next close ends what was begun."""
    left_nano = DOLLAR_NANO - COST_NANO
    await seal(used, "2026-10", month_span("2026-10"), LATER)
    await run_sql(used, f"INSERT INTO closed_balances SELECT '2026-10', 'acct_a', {left_nano}, {left_nano}")
    with pytest.raises(ControlError, match="A later month"):
        await close(used, "2026-09")
    with pytest.raises(StoreRefused, match="a later one is sealed"):
        await seal(used, "2026-09", month_span("2026-09"), LATER)
    await serve(used, "late", OCTOBER)
    assert (await close(used, "2026-10")).entries == 2
    assert (await verify_month(used, "2026-10")).problems == []


async def test_a_closed_month_cannot_be_changed(used: Store) -> None:
    """The database refuses to change or delete its row and its balances."""
    await close(used, "2026-10")
    for table, column in (("closed_months", "entries"), ("closed_balances", "balance_nano")):
        for statement in (f"UPDATE {table} SET {column} = 0", f"DELETE FROM {table}"):
            with pytest.raises(StoreRefused):
                await run_sql(used, statement)


async def test_a_change_behind_our_back_is_found(used: Store) -> None:
    """Verifying reads the entries again: one that was changed, its time too, gives another hash."""
    await close(used, "2026-10")
    sqlite = used.path is not None
    off = "DROP TRIGGER entries_refuse_update" + ("" if sqlite else " ON entries")
    await run_sql(used, off, "UPDATE entries SET created_at = created_at + 1 WHERE completion_id = 'october'")
    problem = "its entries are not those that were closed"
    assert (await verify_month(used, "2026-10")).problems == [problem]
    assert [(one.rule, one.subject) for one in (await check_all(used)).findings] == [(problem, "2026-10")]
