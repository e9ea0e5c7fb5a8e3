"""Payments by card: the port that a payment provider implements, and what an account can do with it.

A payment is stored before its owner gets the address to pay at, so every payment that is made is known. What happens to
it later, the provider tells by events: control/money/payment_events.py.
"""

import secrets
from typing import Literal, Protocol

import msgspec

from cadenza.core.errors import ControlError
from cadenza.core.money import format_dollars
from cadenza.ledger import payments
from cadenza.ledger.payments import Payment
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import audit_events
from cadenza.store.tables.audit_events import AuditEvent

NANO_PER_CENT = 10_000_000
LEAST_NANO = 1 * 10**9
MOST_NANO = 1000 * 10**9
OPEN_MAX = 10  # payments of one account that were begun and not ended
CHECKOUT_S = 60 * 60  # so long a checkout can be paid
STATES = {
    "open": "not paid yet",
    "paid": "paid",
    "returned": "refunded",
    "disputed": "disputed",
    "expired": "not paid",
}


class Checkout(msgspec.Struct, frozen=True):
    """A checkout at the provider: its id, and the address where it is paid."""

    id: str
    url: str


class CheckoutOrder(msgspec.Struct, frozen=True):
    """What is to be paid, and the pages to return to."""

    payment_id: str
    email: str
    amount_nano: int
    expires_at: int
    success_url: str
    cancel_url: str


class Subject(msgspec.Struct, frozen=True):
    """The payment that an event is about: our id, or the provider's of the checkout or the payment. Some are empty."""

    payment_id: str = ""
    checkout: str = ""
    reference: str = ""


class Paid(msgspec.Struct, frozen=True):
    """The money has arrived. The amount is None in any currency but dollars."""

    amount_nano: int | None


class Expired(msgspec.Struct, frozen=True):
    """The checkout was not paid, and cannot be any more."""


class Refunded(msgspec.Struct, frozen=True):
    """So much of the payment was refunded so far, in total."""

    total_nano: int | None


class Disputed(msgspec.Struct, frozen=True):
    """The owner of the card disputes the payment, and the provider has withdrawn this amount."""

    dispute: str
    amount_nano: int | None


class DisputeClosed(msgspec.Struct, frozen=True):
    """A dispute has ended."""

    dispute: str
    amount_nano: int | None
    result: Literal["won", "lost"]


Fact = Paid | Expired | Refunded | Disputed | DisputeClosed


class PaymentEvent(msgspec.Struct, frozen=True):
    """Something that happened to a payment, as its provider tells it. `kind` is the provider's word."""

    id: str
    kind: str
    subject: Subject
    fact: Fact


class ProviderFailed(Exception):
    """The payment provider did not do what was asked. The message is for the log."""


class BadSignature(Exception):
    """An event that the provider did not sign, or signed too long ago."""


class PaymentProvider(Protocol):
    """Takes payments."""

    @property
    def name(self) -> str: ...

    async def create_checkout(self, order: CheckoutOrder) -> Checkout: ...

    def read_event(self, body: bytes, signature: str, now_s: int) -> PaymentEvent | None:
        """The event in the body of a webhook; None for one that is not about a payment. BadSignature if forged."""


class NewPayment(msgspec.Struct, frozen=True):
    """A payment that was begun, and the address where it is paid."""

    payment: Payment
    url: str


class Payer(msgspec.Struct, frozen=True):
    """The account that pays, the person who asks for it, and the address of the site."""

    account_id: str
    email: str
    base_url: str


async def start_payment(
    store: Store, provider: PaymentProvider, payer: Payer, amount_nano: int, now_ms: int
) -> NewPayment:
    """Open a checkout at the provider. ProviderFailed if it does not answer as it should."""
    if not LEAST_NANO <= amount_nano <= MOST_NANO or amount_nano % NANO_PER_CENT:
        raise ControlError(
            f"A payment is from {format_dollars(LEAST_NANO)} to {format_dollars(MOST_NANO)} dollars, in whole cents."
        )
    if await payments.count_open(store, payer.account_id, now_ms - CHECKOUT_S * 1000) >= OPEN_MAX:
        raise ControlError("You have begun many payments and finished none of them. Wait an hour, then try again.")
    payment_id = "pay_" + secrets.token_urlsafe(18)
    page = f"{payer.base_url}/credit"
    expires_at = now_ms // 1000 + CHECKOUT_S
    order = CheckoutOrder(
        payment_id, payer.email, amount_nano, expires_at, f"{page}?note=paid", f"{page}?note=not-paid"
    )
    checkout = await provider.create_checkout(order)
    payment = Payment(
        payment_id, payer.account_id, provider.name, checkout.id, None, amount_nano, 0, "open", now_ms, now_ms
    )

    def begin(tx: Transaction) -> None:
        payments.add(tx, payment)
        detail = f"{format_dollars(amount_nano)} dollars"
        audit_events.add(tx, AuditEvent(now_ms, payer.email, "payment.begin", payer.account_id, payment_id, detail))

    await store.transact(begin)
    return NewPayment(payment, checkout.url)


async def list_payments(store: Store, account_id: str) -> list[Payment]:
    """The newest payments of an account, newest first."""
    return await payments.list_newest(store, account_id)


def describe_payment(payment: Payment) -> str:
    """The state of a payment, in plain words."""
    if payment.state == "paid" and payment.returned_nano:
        return f"paid, {format_dollars(payment.returned_nano)} refunded"
    return STATES[payment.state]
