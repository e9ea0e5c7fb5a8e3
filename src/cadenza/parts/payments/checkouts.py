"""Payments by card: how one is begun at the provider, its invoice, and its state in words.

A payment is stored before its owner gets the address to pay at, so every payment that is made is known.
"""

import secrets

import msgspec

from cadenza.core.errors import ControlError
from cadenza.core.money import NANO_PER_CENT, format_dollars
from cadenza.core.records import Owner
from cadenza.ledger import payments
from cadenza.ledger.payments import Payment, PaymentIds
from cadenza.parts.payments.stripe import CheckoutOrder, Stripe
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import audit_events
from cadenza.store.tables.audit_events import AuditEvent

LEAST_NANO = 1 * 10**9
MOST_NANO = 1000 * 10**9
OPEN_MAX = 10  # payments of one account that were begun and not ended
CHECKOUT_S = 60 * 60  # how long a checkout can be paid
STATES = {
    "open": "not paid yet",
    "paid": "paid",
    "returned": "refunded",
    "disputed": "disputed",
    "expired": "not paid",
}


class NewPayment(msgspec.Struct, frozen=True):
    """A payment that was begun, and the address where it is paid."""

    payment: Payment
    url: str


class Payer(msgspec.Struct, frozen=True):
    """The owner of the account that pays, its address, and that of the site."""

    owner: Owner
    email: str
    base_url: str


async def start_payment(store: Store, provider: Stripe, payer: Payer, amount_nano: int, now_ms: int) -> NewPayment:
    """Open a checkout at the provider. ProviderFailed if it does not answer as it should."""
    if not LEAST_NANO <= amount_nano <= MOST_NANO or amount_nano % NANO_PER_CENT:
        raise ControlError(
            f"A payment is from {format_dollars(LEAST_NANO)} to {format_dollars(MOST_NANO)} dollars, in whole cents."
        )
    owner = payer.owner
    if await payments.count_open(store, owner.account_id, now_ms - CHECKOUT_S * 1000) >= OPEN_MAX:
        raise ControlError("You have begun many payments and finished none of them. Wait an hour, then try again.")
    payment_id = "pay_" + secrets.token_urlsafe(18)
    page = f"{payer.base_url}/credit"
    expires_at = now_ms // 1000 + CHECKOUT_S
    order = CheckoutOrder(
        payment_id, payer.email, amount_nano, expires_at, f"{page}?note=paid", f"{page}?note=not-paid"
    )
    checkout = await provider.create_checkout(order)
    payment = Payment(
        id=payment_id,
        account_id=owner.account_id,
        provider=provider.name,
        checkout=checkout.id,
        amount_nano=amount_nano,
        created_at=now_ms,
        changed_at=now_ms,
    )

    def begin(tx: Transaction) -> None:
        payments.add(tx, payment)
        detail = f"{format_dollars(amount_nano)} dollars"
        audit_events.add(tx, AuditEvent(now_ms, owner, "payment.begin", owner.account_id, payment_id, detail))

    await store.transact(begin)
    return NewPayment(payment, checkout.url)


async def find_invoice_url(store: Store, provider: Stripe, owner: Owner, payment_id: str) -> str | None:
    """The page with the invoice of a payment; None if the account has no such payment, or the payment no invoice."""
    payment = await payments.find(store, provider.name, PaymentIds(payment_id))
    if payment is None or payment.account_id != owner.account_id:
        return None
    return await provider.find_invoice_url(payment.checkout)


def describe_payment(payment: Payment) -> str:
    """The state of a payment, in plain words."""
    words = [STATES[payment.state]]
    if payment.state == "paid" and payment.refunded_nano:
        words.append(f"{format_dollars(payment.refunded_nano)} refunded")
    if payment.state == "paid" and payment.lost_nano:
        words.append(f"{format_dollars(payment.lost_nano)} lost by a dispute")
    return ", ".join(words)
