"""Credit: the balance, what is held, the pace of spending, vouchers, and the low-balance notice.

Guesses of voucher codes are rate-limited by account and by network; a correct code does not count.
"""

import msgspec
from starlette.responses import Response

from cadenza.control.money.credit import list_expiring, set_low_balance
from cadenza.control.money.statement import pace, read_statement
from cadenza.core.formats import rfc3339_or_none
from cadenza.core.money import format_dollars, parse_dollars
from cadenza.core.public import to_record
from cadenza.core.rates import Rate
from cadenza.fleet.limits import Limit, network_limits, release
from cadenza.parts.payments.payments import LEAST_NANO, MOST_NANO, list_payments
from cadenza.parts.payments.vouchers import WrongCode, redeem_voucher
from cadenza.parts.site.errors import BadForm
from cadenza.parts.site.routes import Routes, endpoint, form, get
from cadenza.parts.site.sign_in import throttle
from cadenza.parts.site.visit import Visit

ACCOUNT_GUESSES = Rate(1 / 60, 10)
NETWORK_GUESSES = Rate(1 / 20, 30)
RECENT = 10
AMOUNT_CHARS_MAX = 30
SHOWN_CHARS_MAX = 64  # of what was typed


class VoucherForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The code of a voucher."""

    code: str


class NoticeForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The balance, in dollars, below which the owner gets a notice. Zero: never."""

    amount: str


class ExpiringCredit(msgspec.Struct, frozen=True):
    """Granted credit that expires, unless it is spent before."""

    amount: str
    expires_at: str | None
    note: str


class CreditView(msgspec.Struct, frozen=True):
    """The credit of an account. `free` is the balance less what is held; `lasts_until` is at the recent pace,
    less what expires before it is spent.

    `granted` is the part of the balance that was not paid for: it is spent first. `paid` is the rest of it, and
    `expiring` the part of `granted` that expires, the next first.
    `debt` is credit that was taken back after it was held or spent: ended requests and new credit pay it first.
    """

    balance: str
    paid: str
    granted: str
    held: str
    free: str
    debt: str
    per_day: str
    lasts_until: str | None
    low_balance: str
    is_low: bool
    expiring: list[ExpiringCredit]
    currency: str = "USD"
    object: str = "credit"


class RedeemedView(msgspec.Struct, frozen=True):
    """What a voucher added, and the new balance."""

    amount: str
    balance: str
    currency: str = "USD"
    object: str = "voucher"


async def credit_page(visit: Visit) -> Response:
    """After a mistake, the message and what was typed are shown in the form at fault."""
    store, account, stripe = visit.store, visit.account, visit.service.settings.payments.stripe
    return visit.page(
        "credit.html",
        pace=await pace(store, account, visit.now_ms),
        statement=await read_statement(store, account.id, count=RECENT),
        payments=await list_payments(store, visit.owner),
        expiring=await list_expiring(store, account),
        takes_cards=visit.context.payments is not None,
        has_invoices=bool(stripe and stripe.invoices),
        least_nano=LEAST_NANO,
        most_nano=MOST_NANO,
        form=visit.path.rpartition("/")[2],  # voucher, notice or payment
        typed={name: value[:SHOWN_CHARS_MAX] for name, value in visit.typed.items()},
    )


async def get_credit(visit: Visit) -> CreditView:
    account = visit.account
    found = await pace(visit.store, account, visit.now_ms)
    return to_record(
        CreditView,
        account,
        paid=format_dollars(account.balance_nano - account.granted_nano),
        free=format_dollars(account.balance_nano - account.held_nano),
        per_day=format_dollars(found.per_day_nano),
        lasts_until=rfc3339_or_none(found.lasts_until_ms),
        is_low=account.balance_nano < account.low_balance_nano,
        expiring=[
            to_record(ExpiringCredit, lot, amount=format_dollars(lot.left_nano))
            for lot in await list_expiring(visit.store, account)
        ],
    )


async def redeem(visit: Visit, given: VoucherForm) -> RedeemedView:
    """Take a ticket for a guess first, and give it back unless the code was wrong."""
    rates, account = visit.service.shared.rates, visit.account
    limits = [
        Limit(f"voucher:{account.id}", ACCOUNT_GUESSES),
        *network_limits("voucher:network", visit.address, NETWORK_GUESSES),
    ]
    await throttle.take(rates, limits, "Too many codes that do not exist. Wait a few minutes, then try again.")
    is_guess = False
    try:
        done = await redeem_voucher(visit.store, visit.owner, given.code, visit.now_ms)
        return to_record(RedeemedView, done)
    except WrongCode:
        is_guess = True
        raise
    finally:
        if not is_guess:
            release(rates, limits)


async def change_notice(visit: Visit, given: NoticeForm) -> None:
    await set_low_balance(visit.store, visit.owner, read_dollars(given.amount), visit.now_ms)


def read_dollars(text: str) -> int:
    """Nano-dollars of an amount that somebody typed. A dollar sign in front is fine."""
    text = text.strip().removeprefix("$")
    if not text or len(text) > AMOUNT_CHARS_MAX:
        raise BadForm("Write an amount of dollars, like 5.00.")
    try:
        return parse_dollars(text)
    except ValueError as error:
        raise BadForm(f"{error}.") from None


ROUTES: Routes = (
    get("/credit", credit_page),
    form("/credit/voucher", redeem, "/credit", "redeemed", on_error=credit_page),
    form("/credit/notice", change_notice, "/credit", "saved", on_error=credit_page),
    endpoint("GET", "/credit", "The balance, what is held, and how long it lasts", get_credit, "credit:read"),
    endpoint("POST", "/vouchers/redeem", "Redeem a voucher", redeem, "credit:write"),
    endpoint("PUT", "/credit/notice", "Set the balance below which you are told", change_notice, "credit:write"),
)
