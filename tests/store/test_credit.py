"""Credit outside of requests, on both databases: corrections, statements, and notices of a low balance."""

import asyncio
from functools import partial

import pytest

from cadenza.control.money.credit import correct_credit
from cadenza.control.money.statement import export_statement, read_statement, sum_entries
from cadenza.core.errors import ControlError
from cadenza.core.records import COMMAND_LINE, Owner, Usage
from cadenza.core.spans import Span
from cadenza.ledger import check, credit
from cadenza.ledger.rules import HeldCredit
from cadenza.store.schema import entries
from cadenza.store.store import Store
from cadenza.store.tables import accounts
from cadenza.store.tables.audit_events import list_newest
from tests.store.moves import (
    comes_true,
    finish,
    fund,
    make_hold,
    make_outcome,
    money,
    opened,
    statement_by_pages,
    sweep_process,
    take,
    writing,
)
from tests.store.rows import DOLLAR_NANO, NOW_MS, add_account, rows_of

OWNER = Owner("acct_a", "acct_a@example.org")
EMAIL = "acct_a@example.org"
DAY_MS = 24 * 60 * 60 * 1000


async def spend(store: Store) -> None:
    """Make one request, which costs 2,500 nano-dollars. Nothing is held afterwards."""
    hold = make_hold()
    await take(store, hold)
    await finish(store, hold, Usage(100, 50))
    await sweep_process(store)


async def correct(store: Store, amount_nano: int, reason: str = "a mistake") -> int:
    return (await correct_credit(store, EMAIL, amount_nano, reason, COMMAND_LINE, NOW_MS)).balance_nano


async def test_a_correction_is_an_entry_with_its_reason(store: Store) -> None:
    """A correction lowers the balance by an entry of its own, and is in the audit log; the ledger stays sound."""
    await fund(store, 5 * DOLLAR_NANO)
    assert await correct(store, -DOLLAR_NANO, "granted twice") == 4 * DOLLAR_NANO
    _, made = await rows_of(store, entries)
    assert (made.kind, made.amount_nano, made.note) == ("correction", -DOLLAR_NANO, "granted twice")
    [event] = await list_newest(store, "acct_a")
    assert (event.actor, event.event, event.detail) == (
        COMMAND_LINE.name,
        "credit.correct",
        "-1.00 dollars: granted twice",
    )
    assert await check.find_violations(store) == []


async def test_a_correction_takes_what_is_held_when_it_is_free(store: Store) -> None:
    """What a request holds is a debt until it ends. More than the balance is refused, and changes nothing."""
    await fund(store, 5 * DOLLAR_NANO)
    hold = make_hold()
    assert isinstance(await take(store, hold), HeldCredit)
    with pytest.raises(ControlError, match=r"5\.000000001 dollars cannot be taken .*: the balance is 5\.00\."):
        await correct(store, -5 * DOLLAR_NANO - 1)
    done = await correct_credit(store, EMAIL, -5 * DOLLAR_NANO, "a mistake", COMMAND_LINE, NOW_MS)
    assert (done.balance_nano, done.owed_nano) == (hold.amount_nano, hold.amount_nano)
    with pytest.raises(
        ControlError, match=r"the balance is 0\.0000025, and a debt of 0\.0000025 is taken from it first"
    ):
        await correct(store, -1)
    await finish(store, hold, Usage(100, 10))
    account = await accounts.get_by_email(store, EMAIL)
    assert account
    assert (account.balance_nano, account.debt_nano) == (0, 1300)
    assert await check.find_violations(store) == []


async def test_what_a_process_reserved_without_need_is_asked_back(store: Store) -> None:
    """A correction gets the credit that a running process has in reserve, but for what its requests hold."""
    await fund(store, 5 * DOLLAR_NANO)
    async with writing(store) as (writer, _):
        hold = make_hold()
        held = await writer.hold(hold)
        assert isinstance(held, HeldCredit)
        assert (await money(store))[1] > held.amount_nano

        await correct(store, held.amount_nano - 5 * DOLLAR_NANO)
        # a busy process may give back what it was asked for only after the correction: then it pays the debt
        assert await comes_true(lambda: money(store), becomes=(held.amount_nano, held.amount_nano))
        await writer.end(make_outcome(usage=Usage(100, 50)))
    assert await check.find_violations(store) == []


async def test_a_bad_correction_is_refused(rich: Store) -> None:
    """A correction needs a negative amount that is not absurd, and a reason of one line."""
    for amount_nano in (0, 1, -(10**40)):
        with pytest.raises(ControlError):
            await correct(rich, amount_nano)
    for reason in ("", " ", "a\nb", "x" * 201):
        with pytest.raises(ControlError):
            await correct(rich, -1, reason)
    assert (await money(rich))[0] == DOLLAR_NANO


async def test_corrections_at_the_same_instant_never_pass_zero(store: Store, url: str) -> None:
    """Of eight corrections of a third of the balance, from two processes at once, three succeed."""
    await fund(store, 3 * DOLLAR_NANO)
    async with opened(url) as beside:
        done = await asyncio.gather(
            *(correct((store, beside)[number % 2], -DOLLAR_NANO) for number in range(8)), return_exceptions=True
        )
    assert sorted(one for one in done if isinstance(one, int)) == [0, DOLLAR_NANO, 2 * DOLLAR_NANO]
    assert all(isinstance(one, int | ControlError) for one in done), done
    assert await check.find_violations(store) == []


async def test_a_statement_has_every_entry_once(rich: Store) -> None:
    """Pages, newest first, and the export, oldest first, have the same entries with the same running balance."""
    await add_account(rich, "acct_b")
    for number in range(6):
        await rich.transact(partial(credit.grant, account_id="acct_a", amount_nano=number + 1, note="", now_ms=NOW_MS))
        await rich.transact(lambda tx: credit.grant(tx, "acct_b", 77, "not ours", NOW_MS))
    await spend(rich)
    pages = await statement_by_pages(rich, "acct_a", count=3)
    exported = [entry async for entry in export_statement(rich, OWNER)]
    assert pages == exported[::-1]
    assert len(exported) == 8
    account = await accounts.get_by_email(rich, EMAIL)
    assert account
    assert pages[0].balance_nano == account.balance_nano
    assert exported[0].balance_nano == DOLLAR_NANO
    assert (pages[0].class_id, pages[0].amount_nano) == ("forte", -2500)


async def test_a_bad_cursor_is_refused(store: Store) -> None:
    """A cursor that no page made is refused."""
    for cursor in ("x", "1", "1.", ".1", "-1.5", "1.2.3", "9" * 30 + ".1", "١.١", "1.-1"):
        with pytest.raises(ControlError):
            await read_statement(store, OWNER, cursor)


async def test_a_statement_of_a_span_has_its_entries_and_sums(store: Store) -> None:
    """Whatever the order in which they were written, each with the balance after it; the sums add up."""
    await add_account(store, "acct_a")
    await add_account(store, "acct_b")
    for account, amount_nano, at_ms in (
        ("acct_a", 100, 10),
        ("acct_a", 20, 30),
        ("acct_b", 7, 30),
        ("acct_a", 3, 20),  # written after the one that is later
        ("acct_a", 50, 40),
        ("acct_a", 4, 30),
    ):
        await store.transact(
            lambda tx, account=account, amount=amount_nano, at=at_ms: credit.grant(tx, account, amount, "", at)  # type: ignore[misc]
        )
    span = Span(20, 40)
    first = await read_statement(store, OWNER, count=2, span=span)
    assert [(one.amount_nano, one.balance_nano) for one in first.entries] == [(4, 177), (3, 123)]
    rest = await read_statement(store, OWNER, str(first.next), count=2, span=span)
    assert ([(one.amount_nano, one.balance_nano) for one in rest.entries], rest.next) == ([(20, 120)], None)
    exported = [(one.amount_nano, one.balance_nano) async for one in export_statement(store, OWNER, span)]
    assert exported == [(20, 120), (3, 123), (4, 177)]
    sums = await sum_entries(store, OWNER, span)
    assert (sums.opening_nano, sums.by_origin, sums.closing_nano) == (100, {"opening": 27}, 127)


async def test_sums_are_by_origin_and_of_charges(store: Store) -> None:
    """An empty span has none."""
    await fund(store, 5 * DOLLAR_NANO)
    await spend(store)
    await correct(store, -DOLLAR_NANO)
    sums = await sum_entries(store, OWNER, Span(NOW_MS, NOW_MS + DAY_MS))
    assert sums.by_origin == {"opening": 5 * DOLLAR_NANO, "charge": -2500, "correction": -DOLLAR_NANO}
    assert (sums.charged_nano, sums.added_nano) == (2500, 4 * DOLLAR_NANO)
    later = await sum_entries(store, OWNER, Span(NOW_MS + DAY_MS, NOW_MS + 2 * DAY_MS))
    assert (later.opening_nano, later.by_origin) == (4 * DOLLAR_NANO - 2500, {})
