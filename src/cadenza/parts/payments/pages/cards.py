"""Payments by card. The page only opens a checkout: the card is given to the payment provider, on its own page.

With scripts the browser goes there at once. Without, a page has the link, because our policy forbids a form to lead to
another site. The provider's events come without a session: the signature of the raw body authenticates them. An event
that changes nothing is answered with 200 too, because the provider would send it again; a store that fails, or a bug,
gives an error, and the event comes again.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from cadenza.core.public import to_record
from cadenza.core.rates import Rate
from cadenza.ledger.payments import list_newest
from cadenza.parts.payments.checkouts import (
    LEAST_NANO,
    MOST_NANO,
    NewPayment,
    Payer,
    describe_payment,
    find_invoice_url,
    start_payment,
)
from cadenza.parts.payments.payments import apply_event
from cadenza.parts.payments.stripe import BadSignature, ProviderFailed, Stripe
from cadenza.parts.site.errors import Missing, PageError
from cadenza.parts.site.money.credit import credit_page, read_dollars
from cadenza.parts.site.routes import Access, Routes, endpoint, form, get, post
from cadenza.parts.site.visit import Visit

STARTS = Rate(1 / 60, 5)  # for each account
INVOICES = Rate(1 / 6, 10)  # for each account


class PaymentForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much to pay, in dollars."""

    amount: str


class PaymentView(msgspec.Struct, frozen=True):
    """A payment. `provider` is `stripe` or `transfer`, and `reference` its id there, or that of the bank transfer.

    `returned` is what was refunded, or lost by a dispute.
    """

    id: str
    provider: str
    reference: str | None
    amount: str
    returned: str
    state: str
    created_at: str
    currency: str = "USD"
    object: str = "payment"


class StartedPayment(msgspec.Struct, frozen=True):
    """A payment that was begun, and the address where it is paid."""

    id: str
    amount: str
    url: str
    currency: str = "USD"
    object: str = "payment"


class InvoicePage(msgspec.Struct, frozen=True):
    """The page of Stripe with the invoice of a payment, as HTML and PDF."""

    url: str
    object: str = "invoice"


class PaymentList(msgspec.Struct, frozen=True):
    """The newest payments, newest first."""

    data: list[PaymentView]
    object: str = "list"


class ProviderDown(PageError):
    """The payment provider does not answer."""

    status = 502
    type = "api_error"
    title = "The payment service does not answer"
    message = "The payment service does not answer. Nothing was charged. Try again in a few minutes."


@contextmanager
def asking_provider(visit: Visit, failure: str) -> Iterator[Stripe]:
    """404 without a payment provider; 502, and `failure` in the log, if it does not answer."""
    provider = visit.context.of(Stripe)
    if provider is None:
        raise Missing("This service takes no payments by card.")
    try:
        yield provider
    except ProviderFailed as error:
        visit.service.log.error(failure, provider=provider.name, reason=str(error))
        raise ProviderDown from None


async def start(visit: Visit, given: PaymentForm) -> NewPayment:
    with asking_provider(visit, "a checkout could not be opened") as provider:
        amount_nano = read_dollars(given.amount)
        await visit.limit("payment", STARTS, "You have begun several payments. Wait a minute, then try again.")
        payer = Payer(visit.owner, visit.account.email, visit.base_url)
        return await start_payment(visit.store, provider, payer, amount_nano, visit.now_ms)


async def start_by_api(visit: Visit, given: PaymentForm) -> StartedPayment:
    started = await start(visit, given)
    return to_record(StartedPayment, started.payment, url=started.url)


async def get_payments(visit: Visit) -> PaymentList:
    return PaymentList([to_record(PaymentView, one) for one in await list_newest(visit.store, visit.account.id)])


async def get_invoice(visit: Visit) -> InvoicePage:
    with asking_provider(visit, "an invoice could not be read") as provider:
        await visit.limit("invoice", INVOICES, "You have opened many invoices. Wait a minute, then try again.")
        url = await find_invoice_url(visit.store, provider, visit.owner, visit.path_param("id"))
    if url is None:
        raise Missing("There is no invoice of this payment.")
    return InvoicePage(url)


async def invoice_page(visit: Visit) -> Response:
    return RedirectResponse((await get_invoice(visit)).url, 303)


async def stripe_event(visit: Visit) -> Response:
    provider, log = visit.context.of(Stripe), visit.service.log
    counted = visit.service.gateway.observer.metrics.payment_events
    if provider is None:
        raise Missing
    body = await visit.request.body()
    signature = visit.request.headers.get("stripe-signature", "")
    try:
        event = provider.read_event(body, signature, visit.now_ms // 1000)
    except BadSignature:
        counted.labels("bad_signature").inc()
        log.warning("a payment event with a bad signature was refused", provider=provider.name)
        raise PageError("The signature of this event is wrong or too old.") from None
    if event is None:
        return PlainTextResponse("ignored\n")
    result = await apply_event(visit.store, provider.name, event, visit.now_ms)
    counted.labels(result).inc()
    log.log(
        "info" if result in ("done", "repeated") else "warning",
        "payment event",
        kind=event.kind,
        id=event.id,
        result=result,
    )
    return PlainTextResponse(f"{result}\n")


async def panel_values(visit: Visit) -> Mapping[str, Any]:
    """What the page of credit shows of payments."""
    provider = visit.context.of(Stripe)
    return {
        "payments": await list_newest(visit.store, visit.account.id),
        "payment_words": describe_payment,
        "takes_cards": provider is not None,
        "has_invoices": provider is not None and provider.writes_invoices,
        "least_nano": LEAST_NANO,
        "most_nano": MOST_NANO,
    }


async def start_by_form(visit: Visit, typed: PaymentForm) -> Response:
    started = await start(visit, typed)
    return visit.page("payments/pay.html", url=started.url, amount_nano=started.payment.amount_nano)


ROUTES: Routes = (
    form("/credit/payment", start_by_form, "/credit", on_error=credit_page),
    get("/credit/payments/{id}/invoice", invoice_page),
    post("/platform/webhooks/stripe", stripe_event, Access.ANYONE),
    endpoint("GET", "/payments", "The newest payments, by card and by bank transfer", get_payments, "credit:read"),
    endpoint("GET", "/payments/{id}/invoice", "The invoice of a payment", get_invoice, "credit:read"),
    endpoint("POST", "/payments", "Begin a payment by card", start_by_api, "credit:write"),
)
