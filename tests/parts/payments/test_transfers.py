"""Payments by bank transfer on both databases: each is recorded once, is paid credit, and can be refunded in parts."""

import asyncio
import time

import pytest

from cadenza.control.account.erasure import erase_account
from cadenza.control.money.credit import give_credit
from cadenza.core.errors import ControlError
from cadenza.core.records import COMMAND_LINE, Operator, Usage
from cadenza.core.spans import DAY_MS, day_of, month_span
from cadenza.ledger import payments
from cadenza.ledger.rules import HeldCredit
from cadenza.parts.books.months import compare_payments, report_month
from cadenza.parts.books.payment_rows import PaymentDay, list_entries
from cadenza.parts.books.sums import month_of
from cadenza.parts.payments.transfers import (
    RefundedTransfer,
    Transfer,
    TransferRefund,
    find_transfer,
    record_transfer,
    refund_transfer,
)
from cadenza.store.schema import entries
from cadenza.store.store import Store
from cadenza.store.tables.audit_events import list_newest
from tests.parts.payments.test_debts import CENT_NANO, cents
from tests.parts.payments.test_kinds_of_credit import EMAIL, newest, spend, split
from tests.store.moves import fund, make_hold, make_outcome, money, opened, writing
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of

ANN = Operator("ann")
TRIES = 5
CENT_TOKENS = 10**6  # a hold for them is a cent, and the reserve some cents
LATER_MS = NOW_MS + 31 * DAY_MS
INVOICE = Transfer(10 * DOLLAR_NANO, "INV-17", "seats of May")


async def record(store: Store, transfer: Transfer = INVOICE, email: str = EMAIL, by: Operator = COMMAND_LINE) -> None:
    await record_transfer(store, email, transfer, by, NOW_MS)


async def send_back(store: Store, part_cents: int | None, reference: str = "") -> RefundedTransfer:
    part_nano = None if part_cents is None else part_cents * CENT_NANO
    return await refund_transfer(store, TransferRefund("INV-17", part_nano, "too much", reference), ANN, NOW_MS + 5)


async def test_a_transfer_is_paid_credit(store: Store) -> None:
    """It is spent after granted credit, says its reference, and is in the report by its own method."""
    await fund(store, DOLLAR_NANO)
    await record(store, by=Operator("ann@example.org"))
    assert (await newest(store), await split(store)) == (("payment", 1000, 0), (1000, 100))
    await spend(store, "r1", Usage(30, 40))
    assert (await newest(store), await split(store)) == ((None, -150, -100), (950, 0))
    [payment] = await payments.list_newest(store, "acct_a")
    assert (payment.provider, payment.reference, payment.state) == ("transfer", "INV-17", "paid")
    entry = next(one for one in await rows_of(store, entries) if one.origin == "payment")
    assert (entry.source, entry.note) == (payment.id, "bank transfer INV-17: seats of May")
    paid = next(one for one in await list_newest(store, "acct_a") if one.event == "payment.paid")
    assert (paid.actor, paid.subject, paid.detail) == ("ann@example.org", payment.id, "10.00 dollars")
    report = await report_month(store, month_of(NOW_MS), NOW_MS)
    assert report.payments == [PaymentDay(day_of(NOW_MS), "transfer", 1, 10 * DOLLAR_NANO)]


async def test_a_reference_is_recorded_once(store: Store, url: str) -> None:
    """Of four at once, in two processes and by two people, one is recorded; another amount or account is refused."""
    await fund(store, 0)
    await fund(store, 0, "b")
    async with opened(url) as beside:
        orders = [record((store, beside)[one % 2], by=(ANN, COMMAND_LINE)[one // 2]) for one in range(4)]
        done = await asyncio.gather(*orders, return_exceptions=True)
    assert [one is None for one in done].count(True) == 1, done
    for transfer, email in (
        (INVOICE, EMAIL),
        (Transfer(CENT_NANO, " INV-17 "), EMAIL),
        (INVOICE, "acct_b@example.org"),
        (Transfer(CENT_NANO, "inv-17"), EMAIL),
    ):
        with pytest.raises(ControlError, match=r"'INV-17' was recorded at 20.* for acct_a@.*, with 10.00 dollars, as"):
            await record(store, transfer, email)
    await record(store, Transfer(CENT_NANO, "INV-18"), "acct_b@example.org")
    assert await split(store) == (1000, 0)


async def test_a_bad_transfer_is_refused(store: Store) -> None:
    """It has a reference of one line, and an amount above zero in whole cents, below the limit of a balance."""
    await fund(store, 0)
    for reference in ("", " ", "a\nb", "x" * 101):
        with pytest.raises(ControlError, match="needs its reference, like INV-17"):
            await record(store, Transfer(CENT_NANO, reference))
    for amount_nano in (0, -CENT_NANO, CENT_NANO + 1):
        with pytest.raises(ControlError, match="above zero, in whole cents"):
            await record(store, Transfer(amount_nano, "INV-1"))
    with pytest.raises(ControlError, match="must stay below"):
        await record(store, Transfer(2**62 // CENT_NANO * CENT_NANO + CENT_NANO, "INV-1"))
    with pytest.raises(ControlError, match="A note is one line"):
        await record(store, Transfer(CENT_NANO, "INV-1", "x" * 200))
    await record(store, Transfer(CENT_NANO, "INV-1"))  # none of those used the reference


async def test_a_transfer_is_refunded_in_parts(store: Store) -> None:
    """Paid credit goes first; each reference of a refund counts once, and never more than was paid is refunded."""
    await fund(store, DOLLAR_NANO)
    await record(store)
    for reference in ("SEPA-1", "sepa-1"):
        done = await send_back(store, 400, reference)
        assert done.payment.refunded_nano == 400 * CENT_NANO
    assert done.earlier_at == NOW_MS + 5
    back = next(one for one in await rows_of(store, entries) if one.origin == "return")
    assert back.note == "refund SEPA-1 of bank transfer INV-17: too much"
    assert (await newest(store), await split(store)) == (("return", -400, 0), (600, 100))
    for part_cents in (601, 0):
        with pytest.raises(ControlError, match=r"6.00 of the 10.00 dollars of the bank transfer 'INV-17' can be"):
            await send_back(store, part_cents)
    with pytest.raises(ControlError, match=r"something else: the refund of a bank transfer, -4.00 dollars for acct_a"):
        await send_back(store, 500, "SEPA-1")
    for unfit in ("x" * 101, "SEPA-2\nSEPA-3"):
        with pytest.raises(ControlError, match="is one line of at most 100 characters"):
            await send_back(store, 500, unfit)
    assert (await send_back(store, None)).payment.refunded_nano == 10 * DOLLAR_NANO
    assert (await newest(store), await split(store)) == (("return", -600, 0), (0, 100))
    with pytest.raises(ControlError, match=r"0.00 of the 10.00 dollars"):
        await send_back(store, None)
    [payment] = await payments.list_newest(store, "acct_a")
    assert (payment.state, payment.returned_nano) == ("returned", 10 * DOLLAR_NANO)
    events = [(one.actor, one.detail) for one in await list_newest(store, "acct_a") if one.event == "payment.refund"]
    assert events == [(ANN.name, "6.00 dollars"), (ANN.name, "4.00 dollars")]


async def test_a_refund_is_in_the_month_in_which_it_was_made(store: Store) -> None:
    """The entries of a month add up to its report, and those of the month of the payment do not change by it."""
    await fund(store, 0)
    await record(store)
    this_month, next_month = month_of(NOW_MS), month_of(LATER_MS)
    before = await list_entries(store, month_span(this_month))
    await spend(store, "r1", Usage(30, 40))
    await refund_transfer(store, TransferRefund("INV-17", None, "why", "SEPA-1"), ANN, LATER_MS)
    await give_credit(store, EMAIL, CENT_NANO, "", LATER_MS + 1, COMMAND_LINE)
    assert await list_entries(store, month_span(this_month)) == before
    assert [(one.origin, one.reference, one.amount_nano) for one in before] == [("payment", "INV-17", 10 * DOLLAR_NANO)]
    back, debt = await list_entries(store, month_span(next_month))
    assert (back.origin, back.note) == ("return", "refund SEPA-1 of bank transfer INV-17: why")
    assert (debt.origin, debt.source, debt.amount_nano) == ("debt", back.source, -CENT_NANO)
    sums = (await report_month(store, next_month, LATER_MS)).sums.by_origin
    assert [sums[one.origin].amount_nano for one in (back, debt)] == [back.amount_nano, debt.amount_nano]


async def test_what_was_spent_of_a_refunded_transfer_is_a_debt(store: Store, url: str) -> None:
    """Of two refunds of all of it at once one is made; later payments pay the debt, also of an erased account."""
    await fund(store, 0)
    await record(store)
    await spend(store, "r1", Usage(30, 40))
    async with opened(url) as beside:
        orders = [send_back(one, None) for one in (store, beside)]
        done = await asyncio.gather(*orders, return_exceptions=True)
    assert sorted(type(one).__name__ for one in done) == ["ControlError", "RefundedTransfer"]
    assert await cents(store) == (0, 0, 150)
    await record(store, Transfer(5 * DOLLAR_NANO, "INV-18"))
    assert await cents(store) == (350, 0, 0)
    await erase_account(store, EMAIL, COMMAND_LINE, NOW_MS)
    await refund_transfer(store, TransferRefund("INV-18", None, "closed"), COMMAND_LINE, NOW_MS)
    assert await cents(store) == (0, 0, 500)


async def test_a_refund_waits_for_unused_reserves(store: Store) -> None:
    """What a process has reserved and does not use is taken at once. A process that is too busy leaves a debt."""
    await fund(store, 0)
    async with writing(store) as (writer, _):
        for attempt in range(TRIES):
            reference, request = f"INV-{attempt}", make_hold(f"r{attempt}", prompt_tokens=CENT_TOKENS)
            await record(store, Transfer(10 * DOLLAR_NANO, reference))
            held = await writer.hold(request)
            assert isinstance(held, HeldCredit)
            balance_nano, reserved_nano = await money(store)
            part_nano = (balance_nano - held.amount_nano) // CENT_NANO * CENT_NANO
            assert balance_nano - reserved_nano < part_nano
            await refund_transfer(store, TransferRefund(reference, part_nano, "too much"), ANN, NOW_MS)
            back = [one for one in await rows_of(store, entries) if one.origin == "return"][-1]
            await writer.end(make_outcome(f"r{attempt}", Usage(1, 1)))
            if back.amount_nano == -part_nano:
                return
    pytest.fail("each refund left a debt")


async def test_a_refund_needs_a_transfer(store: Store) -> None:
    """Its reference, or the id of the payment."""
    await fund(store, 0)
    await record(store)
    found = await find_transfer(store, "INV-17")
    assert found
    assert await find_transfer(store, found.id) == await find_transfer(store, "inv-17") == found
    assert await find_transfer(store, "") is None
    began_s = time.thread_time()
    assert (
        await find_transfer(store, "\u0316\u0315\u0345" * 5_000) is None
    )  # to bring so many marks in order takes 1.5 s
    assert time.thread_time() - began_s < 0.2
    with pytest.raises(ControlError, match="No bank transfer has the reference 'INV-71'"):
        await refund_transfer(store, TransferRefund("INV-71", None, "why"), COMMAND_LINE, NOW_MS)


async def test_the_card_provider_need_not_list_transfers(store: Store) -> None:
    """Only card payments are compared with what Stripe lists."""
    await fund(store, 0)
    await record(store)
    assert (await compare_payments(store, month_of(NOW_MS), [])).differences == []
