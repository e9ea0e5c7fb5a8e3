"""Payments on both databases: what each event of the provider does to a payment and to the credit of its account."""

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Literal

import msgspec
import pytest
from sqlalchemy import text

from cadenza.core.errors import ControlError
from cadenza.core.records import Owner
from cadenza.core.spans import Span
from cadenza.ledger import check, credit, payments
from cadenza.ledger.origins import CreditMove
from cadenza.ledger.payments import Payment, PaymentIds
from cadenza.parts.books.payment_rows import sum_days
from cadenza.parts.payments.checkouts import OPEN_MAX, Payer, describe_payment, start_payment
from cadenza.parts.payments.events import (
    DisputeClosed,
    Disputed,
    Expired,
    Fact,
    Paid,
    PaymentEvent,
    Refunded,
    RefundFailed,
)
from cadenza.parts.payments.payments import Result, apply_event, apply_once
from cadenza.parts.payments.stripe import Checkout, CheckoutOrder, Stripe
from cadenza.store.schema import entries
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction
from cadenza.store.tables.audit_events import list_newest
from tests.store.moves import fund, money, opened
from tests.store.rows import DOLLAR_NANO, NOW_MS, rows_of

OWNER = Owner("acct_a", "acct_a@example.org")
AMOUNT_NANO = 10 * DOLLAR_NANO
CHECKOUT = PaymentIds(checkout="cs_1", reference="pi_1")
PAYMENT = PaymentIds(reference="pi_1")
PAID = Paid(AMOUNT_NANO)
DISPUTED = Disputed("dp_1", AMOUNT_NANO)
WON = DisputeClosed("dp_1", AMOUNT_NANO, "won")
LOST = DisputeClosed("dp_1", AMOUNT_NANO, "lost")
ORDERS, ORDERS_POSTGRES = 60, 12  # of each case: half of those of five events, and a tenth
EVENTS = itertools.count(1)
WORTH = Statement(text("SELECT balance_nano - debt_nano FROM accounts WHERE id = 'acct_a'"))


def disputed(amount: int, result: Literal["won", "lost"], dispute: str = "dp", closed: int = 0) -> list[Fact]:
    """A dispute that is opened and closed, about another amount if `closed` is given."""
    return [
        Disputed(dispute, amount * DOLLAR_NANO),
        DisputeClosed(dispute, (closed or amount) * DOLLAR_NANO, result),
    ]


def refunded(*totals: int) -> list[Fact]:
    return [Refunded(total * DOLLAR_NANO) for total in totals]


def failed(amount: int) -> list[Fact]:
    return [RefundFailed("re", amount * DOLLAR_NANO)]


ALL_OPEN = Disputed("dp", AMOUNT_NANO)
# What is told of ten dollars, what comes of it, and then: what is left of them, and the words for the payment.
STORIES: dict[str, list[tuple[Fact, Result, int, str]]] = {
    "a payment gives its credit once": [
        (PAID, "done", 10, "paid"),
        (PAID, "out of order", 10, "paid"),
        (Expired(), "out of order", 10, "paid"),
    ],
    "money that has arrived counts, even after the checkout expired": [
        (Expired(), "done", 0, "not paid"),
        (PAID, "done", 10, "paid"),
    ],
    "another amount, or another currency, gives no credit": [
        (Paid(amount_nano), "wrong amount", 0, "not paid yet")
        for amount_nano in (None, 0, AMOUNT_NANO - 1, AMOUNT_NANO + 1, 10 * AMOUNT_NANO)
    ],
    "a refund takes what was refunded since, and an older total that comes late nothing": [
        (PAID, "done", 10, "paid"),
        (Refunded(3 * DOLLAR_NANO), "done", 7, "paid, 3.00 refunded"),
        (Refunded(2 * DOLLAR_NANO), "out of order", 7, "paid, 3.00 refunded"),
        (Refunded(99 * DOLLAR_NANO), "done", 0, "refunded"),
    ],
    "a dispute takes the credit once, and what it took comes back once, if it is won": [
        (PAID, "done", 10, "paid"),
        (Refunded(DOLLAR_NANO), "done", 9, "paid, 1.00 refunded"),
        (DISPUTED, "done", 0, "disputed"),
        (DISPUTED, "out of order", 0, "disputed"),
        (WON, "done", 9, "paid, 1.00 refunded"),
        (WON, "out of order", 9, "paid, 1.00 refunded"),
        (DISPUTED, "out of order", 9, "paid, 1.00 refunded"),
    ],
    "a dispute that is lost takes nothing more": [
        (PAID, "done", 10, "paid"),
        (DISPUTED, "done", 0, "disputed"),
        (LOST, "done", 0, "refunded"),
        (LOST, "out of order", 0, "refunded"),
    ],
    "the end of a dispute counts even if its beginning comes late, or never": [
        (PAID, "done", 10, "paid"),
        (LOST, "done", 0, "refunded"),
        (DISPUTED, "out of order", 0, "refunded"),
    ],
    "what was refunded and what was lost are counted apart": [
        (PAID, "done", 10, "paid"),
        (Disputed("dp", 3 * DOLLAR_NANO), "done", 7, "disputed"),
        (DisputeClosed("dp", 3 * DOLLAR_NANO, "lost"), "done", 7, "paid, 3.00 lost by a dispute"),
        (Refunded(4 * DOLLAR_NANO), "done", 3, "paid, 4.00 refunded, 3.00 lost by a dispute"),
        (Refunded(7 * DOLLAR_NANO), "done", 0, "refunded"),
    ],
}
IN_ANY_ORDER: dict[str, tuple[list[Fact], int]] = {  # what happens to ten dollars, in order, and what is left of them
    "a part is lost, the rest refunded": ([*disputed(3, "lost"), *refunded(7)], 0),
    "a part is won, a part refunded": ([*disputed(6, "won"), *refunded(2, 7)], 3),
    "more is lost than was disputed": (disputed(3, "lost", closed=5), 5),
    "less is lost than was disputed": (disputed(5, "lost", closed=3), 7),
    "all is lost, a part refunded": ([*disputed(10, "lost"), *refunded(4)], 0),
    "all is won, all refunded": ([*disputed(10, "won"), *refunded(10)], 0),
    "all is disputed, a part refunded": ([ALL_OPEN, *refunded(4)], 0),
    "one is lost, one won": ([*disputed(3, "lost", "dp_a"), *disputed(4, "won", "dp_b"), *refunded(5)], 2),
    "a refund fails, and a smaller one is made": ([*refunded(3), *failed(3), *refunded(2)], 8),
    "the second refund fails": ([*refunded(3, 10), *failed(7)], 7),
    "a refund of all fails, and all is disputed": ([*refunded(10), *failed(10), ALL_OPEN], 0),
    "a refund of all fails, and all is won": ([*refunded(10), *failed(10), *disputed(10, "won")], 10),
    "a refund of all fails, and all is lost": ([*refunded(10), *failed(10), *disputed(10, "lost")], 0),
}


class Till(Stripe):
    """A payment provider that opens checkouts in memory."""

    name = "stripe"

    def __init__(self) -> None:
        self.orders: list[CheckoutOrder] = []

    async def create_checkout(self, order: CheckoutOrder) -> Checkout:
        self.orders.append(order)
        return Checkout(f"cs_{len(self.orders)}", "https://pay.example/1")


async def start(store: Store, amount_nano: int = AMOUNT_NANO, till: Till | None = None) -> str:
    payer = Payer(OWNER, OWNER.name, "https://c.example")
    return (await start_payment(store, till or Till(), payer, amount_nano, NOW_MS)).payment.id


def sender(store: Store) -> Callable[..., "asyncio.Future[Result]"]:
    """Sends facts as events with ids of their own."""

    def send(fact: Fact, subject: PaymentIds | None = None) -> "asyncio.Future[Result]":
        of_session = isinstance(fact, Paid | Expired)
        event = PaymentEvent(f"evt_{next(EVENTS)}", "kind", subject or (CHECKOUT if of_session else PAYMENT), fact)
        return asyncio.ensure_future(apply_event(store, "stripe", event, NOW_MS + 1))

    return send


async def balance(store: Store) -> int:
    assert await check.find_violations(store) == []
    return (await money(store))[0]


def worth(tx: Transaction) -> int:
    """The balance, less the debts."""
    row = tx.row(WORTH, {})
    assert row
    return int(row[0])


def spend(tx: Transaction, amount_nano: int) -> None:
    move = CreditMove("acct_a", "correction", amount_nano, "spent", NOW_MS, f"spent:{next(EVENTS)}")
    credit.take(tx, move)


def of_payment(fact: Fact, number: int) -> Fact:
    """The same fact, about a dispute or a refund of the payment with this number."""
    if isinstance(fact, Disputed | DisputeClosed):
        return msgspec.structs.replace(fact, dispute=f"{fact.dispute}_{number}")
    if isinstance(fact, RefundFailed):
        return msgspec.structs.replace(fact, refund=f"{fact.refund}_{number}")
    return fact


async def start_many(store: Store, count: int) -> None:
    """Payments whose checkouts are cs_1 and so on."""

    def begin(tx: Transaction) -> None:
        for number in range(1, count + 1):
            name = f"pay_{number}"
            payments.add(
                tx,
                Payment(name, "acct_a", "stripe", f"cs_{number}", AMOUNT_NANO, NOW_MS, NOW_MS),
            )

    await store.transact(begin)


async def state(store: Store) -> tuple[str, int]:
    [payment] = await payments.list_newest(store, "acct_a")
    return payment.state, payment.returned_nano


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
async def test_what_each_event_does(store: Store, story: list[tuple[Fact, Result, int, str]]) -> None:
    """To the payment, and to the credit that it gave. A dollar that the account had before stays."""
    await fund(store, DOLLAR_NANO)
    await start(store)
    send = sender(store)
    for fact, result, left, words in story:
        assert await send(fact) == result
        [payment] = await payments.list_newest(store, "acct_a")
        assert (await balance(store), describe_payment(payment)) == ((1 + left) * DOLLAR_NANO, words), fact


async def test_an_event_at_the_same_instant_counts_once(store: Store, url: str) -> None:
    """An event, and others about the same payment, in two processes at once, give one grant."""
    await fund(store, 0)
    await start(store)
    events = [PaymentEvent(name, "kind", CHECKOUT, PAID) for name in ("evt_1", "evt_1", "evt_1", "evt_2", "evt_3")]
    async with opened(url) as beside:
        done = await asyncio.gather(
            *(apply_event((store, beside)[n % 2], "stripe", one, NOW_MS) for n, one in enumerate(events * 2))
        )
    assert done.count("done") == 1
    assert set(done) <= {"done", "repeated", "out of order"}
    assert await balance(store) == AMOUNT_NANO


async def test_an_event_that_comes_again_is_not_applied(store: Store) -> None:
    """The provider repeats an event with its id: neither the payment nor the audit log notices, whatever it said."""
    await fund(store, 0)
    await start(store)
    wrong = PaymentEvent("evt_again", "kind", CHECKOUT, Paid(AMOUNT_NANO + 1))
    assert await apply_event(store, "stripe", wrong, NOW_MS) == "wrong amount"
    logged = await list_newest(store, "acct_a")
    assert logged[0].event == "payment.mismatch", "an operator can see it"
    for fact in (wrong.fact, PAID, Expired()):
        again = msgspec.structs.replace(wrong, fact=fact)
        assert await apply_event(store, "stripe", again, NOW_MS + 1) == "repeated"
    assert await list_newest(store, "acct_a") == logged
    assert (await balance(store), await state(store)) == (0, ("open", 0))


async def test_unknown_payments_are_left_alone(store: Store) -> None:
    """Events about payments that are not ours, or of another provider, change nothing."""
    await fund(store, 0)
    await start(store)
    send = sender(store)
    for subject in (
        PaymentIds(),
        PaymentIds("pay_x"),
        PaymentIds("", "cs_2"),
        PaymentIds("", "", "pi_1"),
        PaymentIds("-", "-", "-"),
    ):
        assert await send(PAID, subject) == "unknown payment"
    other = PaymentEvent("evt_x", "kind", CHECKOUT, PAID)
    assert await apply_event(store, "another", other, NOW_MS) == "unknown payment"
    assert await balance(store) == 0


async def test_a_refund_before_the_payment_is_not_granted(store: Store) -> None:
    """A refund whose event comes before that of the payment lowers the grant."""
    await fund(store, 0)
    payment_id = await start(store)
    send = sender(store)
    assert await send(Refunded(4 * DOLLAR_NANO), PaymentIds(payment_id, "", "pi_1")) == "done"
    assert await balance(store) == 0
    assert await send(PAID) == "done"
    assert (await balance(store), await state(store)) == (6 * DOLLAR_NANO, ("paid", 4 * DOLLAR_NANO))
    [grant] = await rows_of(store, entries)
    assert (grant.kind, grant.amount_nano, grant.source) == ("grant", 6 * DOLLAR_NANO, payment_id)
    [day] = await sum_days(store, Span(NOW_MS + 1, NOW_MS + 2))  # the millisecond of its entry
    assert (day.count, day.amount_nano) == (1, 6 * DOLLAR_NANO)
    assert await sum_days(store, Span(NOW_MS, NOW_MS + 1)) == await sum_days(store, Span(NOW_MS + 2, NOW_MS + 3)) == []


@pytest.mark.parametrize(("facts", "left"), [*IN_ANY_ORDER.values()], ids=[*IN_ANY_ORDER])
async def test_events_take_the_same_in_every_order(store: Store, facts: list[Fact], left: int) -> None:
    """Paid, refunds, their failures and disputes, each twice and in any order, leave the same credit, spent or not."""
    await fund(store, 0)
    told = [(PAID, 0), *((fact, at) for at, fact in enumerate(facts, start=1))]
    every = [*itertools.permutations(told)]
    count = ORDERS_POSTGRES if store.is_shared_by_machines else ORDERS
    orders = random.Random(7).sample(every, min(count, len(every)))
    await start_many(store, len(orders))

    def apply_all(tx: Transaction) -> None:
        expected_nano = 0
        for number, order in enumerate(orders, start=1):
            for fact, at in order:
                our_id = f"pay_{number}" if number % 4 > 1 else ""  # of half of them, other events know the payment
                subject = PaymentIds(our_id, f"cs_{number}" if fact is PAID else "", f"pi_{number}")
                event = PaymentEvent(f"evt_{number}_{at}", "kind", subject, of_payment(fact, number), at)
                apply_once(tx, "stripe", event, NOW_MS)
                again = msgspec.structs.replace(event, id=f"{event.id}_again")
                assert apply_once(tx, "stripe", event, NOW_MS) == "repeated"
                assert apply_once(tx, "stripe", again, NOW_MS) in ("out of order", "waiting")
                if fact is PAID and number % 2:
                    spend(tx, 8 * DOLLAR_NANO)
            expected_nano += left * DOLLAR_NANO - 8 * DOLLAR_NANO * (number % 2)
            assert worth(tx) == expected_nano, order

    await store.transact(apply_all)
    assert await check.find_violations(store) == []


async def test_a_dispute_and_its_payment_at_the_same_instant(store: Store, url: str) -> None:
    """Of two processes, one gets the dispute and the other the payment, which is not known by its reference yet."""
    await fund(store, 0)
    rounds = 8
    await start_many(store, rounds)
    async with opened(url) as beside:
        for number in range(1, rounds + 1):
            subject = PaymentIds(checkout=f"cs_{number}", reference=f"pi_{number}")
            events = [
                PaymentEvent(f"evt_{number}_a", "kind", subject, PAID),
                PaymentEvent(
                    f"evt_{number}_b", "kind", PaymentIds(reference=f"pi_{number}"), of_payment(DISPUTED, number)
                ),
            ]
            one, other = events[:: 1 if number % 2 else -1]
            await asyncio.gather(
                apply_event(store, "stripe", one, NOW_MS), apply_event(beside, "stripe", other, NOW_MS)
            )
    assert await balance(store) == 0


async def test_absurd_amounts_open_no_checkout(store: Store) -> None:
    """Less than a dollar, more than a thousand, and parts of a cent are refused before the provider is asked."""
    await fund(store, 0)
    till = Till()
    for amount_nano in (0, -1, 1, DOLLAR_NANO - 1, DOLLAR_NANO + 1, 1001 * DOLLAR_NANO, 10**30):
        with pytest.raises(ControlError):
            await start(store, amount_nano, till)
    assert till.orders == []


async def test_an_account_has_few_open_payments(store: Store) -> None:
    """An account that begins payments and pays none of them is stopped."""
    await fund(store, 0)
    till = Till()
    for _ in range(OPEN_MAX):
        await start(store, till=till)
    with pytest.raises(ControlError):
        await start(store, till=till)
    assert len(till.orders) == OPEN_MAX
    assert till.orders[0].success_url == "https://c.example/credit?note=paid"
    counts = [await payments.count_open(store, "acct_a", since) for since in (NOW_MS - 1, NOW_MS)]
    assert counts == [OPEN_MAX, 0], "those whose checkout can no longer be paid do not count"
