"""Payments by Stripe Checkout, on our own HTTP client: opening a checkout, its invoice, listing payments, and signed
events.

An event counts only if its signature matches the raw body and is at most TOLERANCE_S old. Only the fields named here
are read.
"""

import asyncio
import hashlib
import hmac
from urllib.parse import quote, urlencode

import msgspec

from cadenza.core.money import NANO_PER_CENT
from cadenza.core.spans import Span
from cadenza.http.client import HttpClient, Unreachable
from cadenza.http.client_connection import Broken, read_body
from cadenza.ledger.payments import PaymentIds, ProviderPayment
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
from cadenza.parts.payments.settings import StripeSettings

API_VERSION = "2025-09-30.clover"  # what replies to our requests look like; that of events is set with their endpoint
TOLERANCE_S = 5 * 60
SIGNATURE_CHARS_MAX = 2048  # of the header: those of ten secrets take 700
CONNECT_S = 10.0
REPLY_S = 30.0
REPLY_BYTES_MAX = 4 * 1024 * 1024  # of a page of charges
PAGE = 100
SESSIONS = "/v1/checkout/sessions"
CHARGES = "/v1/charges"
PRODUCT = "Credit"
ITEM = "line_items[0]"


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


class ProviderFailed(Exception):
    """The payment provider did not do what was asked. The message is for the log."""


class BadSignature(Exception):
    """An event that the provider did not sign, or signed too long ago."""


class _Session(msgspec.Struct, frozen=True):
    """A checkout session, or what we read of it."""

    id: str
    url: str | None = None
    client_reference_id: str | None = None
    payment_intent: str | None = None
    payment_status: str = ""
    amount_total: int | None = None
    currency: str | None = None


class _Invoice(msgspec.Struct, frozen=True):
    """An invoice. It has a page once it is final."""

    hosted_invoice_url: str | None = None


class _InvoicedSession(msgspec.Struct, frozen=True):
    """A checkout session with its invoice."""

    invoice: _Invoice | None = None


class _Charge(msgspec.Struct, frozen=True):
    """A payment by card. It has the metadata of its payment intent."""

    amount_refunded: int
    currency: str
    payment_intent: str | None = None
    metadata: dict[str, str] = {}
    id: str = ""
    amount: int = 0
    created: int = 0
    status: str = ""


class _Charges(msgspec.Struct, frozen=True):
    data: list[_Charge]
    has_more: bool


class _Refund(msgspec.Struct, frozen=True):
    """A refund of a charge, or of a part of it. One that fails or is cancelled comes back to us."""

    id: str
    amount: int
    currency: str
    status: str | None = None
    payment_intent: str | None = None


class _Dispute(msgspec.Struct, frozen=True):
    """A dispute. Before money is withdrawn, its status begins with warning_."""

    id: str
    amount: int
    currency: str
    status: str
    payment_intent: str | None = None


class _Data(msgspec.Struct, frozen=True):
    object: msgspec.Raw


class _Event(msgspec.Struct, frozen=True):
    id: str
    type: str
    data: _Data
    created: int = 0

    def of(self, subject: PaymentIds, fact: Fact) -> PaymentEvent:
        return PaymentEvent(self.id, self.type, subject, fact, self.created * 1000)


class Stripe:
    """An account at Stripe."""

    name = "stripe"

    def __init__(self, settings: StripeSettings) -> None:
        assert settings.secret_key, "a start needs all secrets"
        assert settings.webhook_secret
        headers = {
            "authorization": f"Bearer {settings.secret_key}",
            "content-type": "application/x-www-form-urlencoded",
            "stripe-version": API_VERSION,
        }
        self._client = HttpClient(settings.api_url, headers)
        self._secret = settings.webhook_secret.encode()
        self._options = _options(settings)

    @property
    def writes_invoices(self) -> bool:
        return "invoice_creation[enabled]" in self._options

    async def create_checkout(self, order: CheckoutOrder) -> Checkout:
        try:
            session = msgspec.json.decode(await self._ask("POST", SESSIONS, _form(order, self._options)), type=_Session)
        except msgspec.DecodeError:
            raise ProviderFailed("a reply that is not a checkout session") from None
        if not session.url or not session.url.startswith(("https://", "http://")):
            raise ProviderFailed("a checkout session without an address")
        return Checkout(session.id, session.url)

    async def find_invoice_url(self, checkout: str) -> str | None:
        reply = await self._ask("GET", f"{SESSIONS}/{quote(checkout, safe='')}?{urlencode({'expand[]': 'invoice'})}")
        try:
            invoice = msgspec.json.decode(reply, type=_InvoicedSession).invoice
        except msgspec.DecodeError:
            raise ProviderFailed("a reply that is not a checkout session") from None
        url = invoice.hosted_invoice_url if invoice else None
        return url if url and url.startswith(("https://", "http://")) else None

    async def list_payments(self, span: Span) -> list[ProviderPayment]:
        """The payments of a span that succeeded, those of other programs on the same account too."""
        query: dict[str, str | int] = {
            "created[gte]": span.start_ms // 1000,
            "created[lt]": span.end_ms // 1000,
            "limit": PAGE,
        }
        found = list[ProviderPayment]()
        while True:
            try:
                page = msgspec.json.decode(await self._ask("GET", f"{CHARGES}?{urlencode(query)}"), type=_Charges)
            except msgspec.DecodeError:
                raise ProviderFailed("a reply that is not a list of charges") from None
            found += [_provider_payment(one) for one in page.data if one.status == "succeeded"]
            if not page.has_more or not page.data:
                return found
            query["starting_after"] = page.data[-1].id

    async def close(self) -> None:
        await self._client.close()

    async def _ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of a successful reply."""
        try:
            async with asyncio.timeout(REPLY_S), self._client.request(method, path, body, CONNECT_S) as reply:
                found, status = await read_body(reply, float("inf"), REPLY_BYTES_MAX), reply.status
        except (Unreachable, Broken, OSError) as error:  # a timeout is an OSError
            raise ProviderFailed(type(error).__name__) from None
        if status != 200:
            raise ProviderFailed(f"status {status}")
        return found

    def read_event(self, body: bytes, signature: str, now_s: int) -> PaymentEvent | None:
        check_signature(self._secret, body, signature, now_s)
        try:
            event = msgspec.json.decode(body, type=_Event)
            return _payment_event(event)
        except msgspec.DecodeError:
            return None


def check_signature(secret: bytes, body: bytes, header: str, now_s: int) -> None:
    """BadSignature unless one of the signatures in the header is ours and recent. Anybody may send one of 64 KiB."""
    if len(header) > SIGNATURE_CHARS_MAX:
        raise BadSignature
    parts = [part.strip().partition("=") for part in header.split(",")]
    times = [value for name, _, value in parts if name == "t"]
    given = [value.encode() for name, _, value in parts if name == "v1"]
    if len(times) != 1 or not (times[0].isascii() and times[0].isdecimal() and len(times[0]) < 20):
        raise BadSignature
    expected = hmac.new(secret, times[0].encode() + b"." + body, hashlib.sha256).hexdigest().encode()
    is_ours = any(hmac.compare_digest(expected, one) for one in given)
    if not is_ours or abs(now_s - int(times[0])) > TOLERANCE_S:
        raise BadSignature


def _payment_event(event: _Event) -> PaymentEvent | None:  # noqa: PLR0911 one for each kind
    """None for an event that changes no payment."""
    raw = event.data.object
    match event.type:
        case "checkout.session.completed" | "checkout.session.async_payment_succeeded":
            session = msgspec.json.decode(raw, type=_Session)
            if session.payment_status != "paid":  # another event will tell whether it is
                return None
            return event.of(_of_session(session), Paid(_nano(session)))
        case "checkout.session.expired":
            session = msgspec.json.decode(raw, type=_Session)
            return event.of(_of_session(session), Expired())
        case "charge.refunded":
            charge = msgspec.json.decode(raw, type=_Charge)
            subject = PaymentIds(charge.metadata.get("payment", ""), "", charge.payment_intent or "")
            total_nano = _dollars(charge.amount_refunded, charge.currency)
            return event.of(subject, Refunded(total_nano))
        case "refund.failed" | "refund.updated" | "charge.refund.updated":
            refund = msgspec.json.decode(raw, type=_Refund)
            if refund.status not in ("failed", "canceled"):
                return None
            subject = PaymentIds("", "", refund.payment_intent or "")
            return event.of(subject, RefundFailed(refund.id, _dollars(refund.amount, refund.currency)))
        case "charge.dispute.created" | "charge.dispute.funds_withdrawn" | "charge.dispute.closed":
            return _dispute_event(event, msgspec.json.decode(raw, type=_Dispute))
    return None


def _dispute_event(event: _Event, dispute: _Dispute) -> PaymentEvent | None:
    subject, amount_nano = PaymentIds("", "", dispute.payment_intent or ""), _dollars(dispute.amount, dispute.currency)
    if dispute.status.startswith("warning_"):
        return None
    if event.type != "charge.dispute.closed":
        return event.of(subject, Disputed(dispute.id, amount_nano))
    if dispute.status == "lost":
        return event.of(subject, DisputeClosed(dispute.id, amount_nano, "lost"))
    if dispute.status == "won":
        return event.of(subject, DisputeClosed(dispute.id, amount_nano, "won"))
    return None


def _of_session(session: _Session) -> PaymentIds:
    """Only by the session: an id that somebody put into another session of the same account must not count."""
    return PaymentIds("", session.id, session.payment_intent or "")


def _nano(session: _Session) -> int | None:
    return None if session.amount_total is None else _dollars(session.amount_total, session.currency or "")


def _provider_payment(charge: _Charge) -> ProviderPayment:
    return ProviderPayment(
        charge.id,
        charge.metadata.get("payment", ""),
        _dollars(charge.amount, charge.currency),
        _dollars(charge.amount_refunded, charge.currency),
        charge.created * 1000,
    )


def _dollars(cents: int, currency: str) -> int | None:
    return cents * NANO_PER_CENT if currency == "usd" else None


def _options(settings: StripeSettings) -> dict[str, str]:
    """What a checkout asks Stripe to do about invoices and taxes. The amount includes the tax."""
    options = dict[str, str]()
    if settings.invoices:
        options |= {
            "invoice_creation[enabled]": "true",
            "billing_address_collection": "required",
            "tax_id_collection[enabled]": "true",
        }
    if settings.tax == "automatic":
        options |= {"automatic_tax[enabled]": "true", f"{ITEM}[price_data][tax_behavior]": "inclusive"}
    return options


def _form(order: CheckoutOrder, options: dict[str, str]) -> bytes:
    cents, rest = divmod(order.amount_nano, NANO_PER_CENT)
    assert rest == 0
    return urlencode(
        {
            "mode": "payment",
            "client_reference_id": order.payment_id,
            "customer_email": order.email,
            "success_url": order.success_url,
            "cancel_url": order.cancel_url,
            "expires_at": order.expires_at,
            f"{ITEM}[quantity]": 1,
            f"{ITEM}[price_data][currency]": "usd",
            f"{ITEM}[price_data][unit_amount]": cents,
            f"{ITEM}[price_data][product_data][name]": PRODUCT,
            "payment_intent_data[metadata][payment]": order.payment_id,
            "adaptive_pricing[enabled]": "false",  # the amount stays in dollars
            **options,
        }
    ).encode()
