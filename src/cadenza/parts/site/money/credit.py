"""Credit: the balance, what is held, the pace of spending, and the low-balance notice."""

import msgspec
from starlette.responses import Response

from cadenza.control.money.credit import list_expiring, set_low_balance
from cadenza.control.money.statement import pace, read_statement
from cadenza.core.formats import rfc3339_or_none
from cadenza.core.money import format_dollars, parse_dollars
from cadenza.core.public import to_record
from cadenza.parts.site.errors import BadForm
from cadenza.parts.site.routes import Routes, endpoint, form, get
from cadenza.parts.site.visit import Visit

RECENT = 10
AMOUNT_CHARS_MAX = 30
SHOWN_CHARS_MAX = 64  # of what was typed


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


async def credit_page(visit: Visit) -> Response:
    """After a mistake, the message and what was typed are shown in the form at fault."""
    store, account = visit.store, visit.account
    return await visit.page_with_panels(
        "/credit",
        "credit.html",
        pace=await pace(store, account, visit.now_ms),
        statement=await read_statement(store, visit.owner, count=RECENT),
        expiring=await list_expiring(store, account),
        form=visit.path.rpartition("/")[2],  # the last word of the address of a form
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
    form("/credit/notice", change_notice, "/credit", "saved", on_error=credit_page),
    endpoint("GET", "/credit", "The balance, what is held, and how long it lasts", get_credit, "credit:read"),
    endpoint("PUT", "/credit/notice", "Set the balance below which you are told", change_notice, "credit:write"),
)
