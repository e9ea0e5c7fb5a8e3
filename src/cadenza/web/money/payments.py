"""Payments by card. The site only opens a checkout: the card is given to the payment provider, on its own page.

With scripts the browser goes there at once. Without, a page has the link, because our policy forbids a form to lead to
another site.
"""

import msgspec
from starlette.responses import Response

from cadenza.control.money.payments import NewPayment, Payer, ProviderFailed, list_payments, start_payment
from cadenza.core.errors import ControlError
from cadenza.core.formats import rfc3339
from cadenza.core.money import format_dollars
from cadenza.core.rates import Rate
from cadenza.ledger.payments import Payment
from cadenza.web.errors import Missing, PageError, TooMany
from cadenza.web.money.amounts import read_dollars
from cadenza.web.money.credit import show_credit
from cadenza.web.routes import Endpoint, Routes, post
from cadenza.web.visit import Visit

STARTS = Rate(1 / 60, 5)  # of one account


class PaymentForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much to pay, in dollars."""

    amount: str


class PaymentView(msgspec.Struct, frozen=True):
    """A payment. `returned` is what was refunded, or lost by a dispute."""

    id: str
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


class PaymentList(msgspec.Struct, frozen=True):
    """The newest payments, newest first."""

    data: list[PaymentView]
    object: str = "list"


class ProviderDown(PageError):
    """The payment provider does not answer."""

    status = 502
    type = "api_error"
    title = "The payment service does not answer"

    def __init__(self) -> None:
        super().__init__("The payment service does not answer. Nothing was charged. Try again in a few minutes.")


async def pay(visit: Visit) -> Response:
    form = await visit.form(PaymentForm)
    try:
        begun = await _start(visit, form)
    except (ControlError, PageError) as error:
        return await show_credit(visit, error, form="payment", amount=form.amount[:64])
    return visit.page("pay.html", url=begun.url, amount_nano=begun.payment.amount_nano)


async def pay_by_api(visit: Visit, form: PaymentForm) -> StartedPayment:
    begun = await _start(visit, form)
    return StartedPayment(begun.payment.id, format_dollars(begun.payment.amount_nano), begun.url)


async def get_payments(visit: Visit) -> PaymentList:
    return PaymentList([_view(one) for one in await list_payments(visit.context.store, visit.account.id)])


async def _start(visit: Visit, form: PaymentForm) -> NewPayment:
    context, account = visit.context, visit.account
    if context.payments is None:
        raise Missing("This service takes no payments by card.")
    amount_nano = read_dollars(form.amount)
    ticket = await context.rates.take(f"payment:{account.id}", STARTS)
    if not ticket.is_granted:
        raise TooMany("You have begun several payments. Wait a minute, then try again.", ticket.wait_s)
    payer = Payer(account.id, account.email, visit.base_url)
    try:
        return await start_payment(context.store, context.payments, payer, amount_nano, visit.now_ms)
    except ProviderFailed as error:
        context.log.error("a checkout could not be opened", provider=context.payments.name, reason=str(error))
        raise ProviderDown from None


def _view(payment: Payment) -> PaymentView:
    return PaymentView(
        id=payment.id,
        amount=format_dollars(payment.amount_nano),
        returned=format_dollars(payment.returned_nano),
        state=payment.state,
        created_at=rfc3339(payment.created_at),
    )


ROUTES: Routes = (
    post("/credit/payment", pay),
    Endpoint("GET", "/payments", "The newest payments by card", get_payments, returns=PaymentList),
    Endpoint("POST", "/payments", "Begin a payment by card", pay_by_api, PaymentForm, StartedPayment),
)
