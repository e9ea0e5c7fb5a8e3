"""Credit: the balance, what is held, the pace, vouchers, and when to tell that it runs low.

Guesses of voucher codes are limited for each account and each network; a code that is right does not count.
"""

import msgspec
from starlette.responses import Response

from cadenza.control.money.credit import set_low_balance
from cadenza.control.money.payments import LEAST_NANO, MOST_NANO, list_payments
from cadenza.control.money.statement import pace, read_statement
from cadenza.control.money.vouchers import Redeemed, WrongCode, redeem_voucher
from cadenza.core.errors import ControlError
from cadenza.core.formats import rfc3339
from cadenza.core.money import format_dollars
from cadenza.core.networks import network_of
from cadenza.core.rates import Rate
from cadenza.core.usage_report import Pace
from cadenza.store.tables.accounts import Account
from cadenza.web.errors import PageError, TooMany
from cadenza.web.money.amounts import read_dollars
from cadenza.web.render import redirect
from cadenza.web.routes import Endpoint, Routes, get, post
from cadenza.web.visit import Visit

ACCOUNT_GUESSES = Rate(1 / 60, 10)
NETWORK_GUESSES = Rate(1 / 20, 30)
RECENT = 10


class VoucherForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The code of a voucher."""

    code: str


class NoticeForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The balance, in dollars, below which the owner is told. Zero: never."""

    amount: str


class CreditView(msgspec.Struct, frozen=True):
    """The credit of an account. `free` is the balance less what is held; `lasts_until` is at the recent pace.

    `debt` is credit that was taken back after it was held or spent: ended requests and new credit pay it first.
    """

    balance: str
    held: str
    free: str
    debt: str
    per_day: str
    lasts_until: str | None
    low_balance: str
    is_low: bool
    currency: str = "USD"
    object: str = "credit"


class RedeemedView(msgspec.Struct, frozen=True):
    """What a voucher added, and the balance since."""

    amount: str
    balance: str
    currency: str = "USD"
    object: str = "voucher"


async def credit_page(visit: Visit) -> Response:
    return await show_credit(visit)


async def show_credit(visit: Visit, problem: PageError | ControlError | None = None, **typed: str) -> Response:
    """The page, with what was typed and what is wrong with it, if anything is. `form` names the form at fault."""
    store, account = visit.context.store, visit.account
    response = visit.page(
        "credit.html",
        400 if problem else 200,
        pace=await pace(store, account.id, visit.now_ms),
        statement=await read_statement(store, account.id, count=RECENT),
        payments=await list_payments(store, account.id),
        takes_cards=visit.context.payments is not None,
        least_nano=LEAST_NANO,
        most_nano=MOST_NANO,
        error=problem.message if problem else "",
        typed={"form": "", "code": "", "amount": "", "notice": format_dollars(account.low_balance_nano), **typed},
    )
    if isinstance(problem, TooMany):
        response.status_code = problem.status
        response.headers["retry-after"] = str(max(1, round(problem.wait_s)))
    return response


async def redeem(visit: Visit) -> Response:
    form = await visit.form(VoucherForm)
    try:
        await _redeem(visit, form)
    except (ControlError, TooMany) as error:
        return await show_credit(visit, error, form="voucher", code=form.code[:64])
    return redirect("/credit", "redeemed")


async def change_notice(visit: Visit) -> Response:
    form = await visit.form(NoticeForm)
    try:
        await _change_notice(visit, form)
    except (ControlError, PageError) as error:
        return await show_credit(visit, error, form="notice", notice=form.amount[:64])
    return redirect("/credit", "saved")


async def get_credit(visit: Visit) -> CreditView:
    return _view(visit.account, await pace(visit.context.store, visit.account.id, visit.now_ms))


async def redeem_by_api(visit: Visit, form: VoucherForm) -> RedeemedView:
    done = await _redeem(visit, form)
    return RedeemedView(format_dollars(done.amount_nano), format_dollars(done.balance_nano))


async def change_notice_by_api(visit: Visit, form: NoticeForm) -> None:
    await _change_notice(visit, form)


async def _redeem(visit: Visit, form: VoucherForm) -> Redeemed:
    """Take a ticket for a guess first, and give it back unless the code was wrong."""
    rates, account = visit.context.rates, visit.account
    limits = {
        f"voucher:{account.id}": ACCOUNT_GUESSES,
        f"voucher:{network_of(visit.address)}": NETWORK_GUESSES,
    }
    for name, rate in limits.items():
        ticket = await rates.take(name, rate)
        if not ticket.is_granted:
            raise TooMany("Too many codes that do not exist. Wait a few minutes, then try again.", ticket.wait_s)
    is_guess = False
    try:
        return await redeem_voucher(visit.context.store, account.id, form.code, account.email, visit.now_ms)
    except WrongCode:
        is_guess = True
        raise
    finally:
        if not is_guess:
            for name, rate in limits.items():
                rates.give_back(name, rate)


async def _change_notice(visit: Visit, form: NoticeForm) -> None:
    account = visit.account
    await set_low_balance(visit.context.store, account.id, read_dollars(form.amount), account.email, visit.now_ms)


def _view(account: Account, found: Pace) -> CreditView:
    return CreditView(
        balance=format_dollars(account.balance_nano),
        held=format_dollars(account.held_nano),
        free=format_dollars(account.balance_nano - account.held_nano),
        debt=format_dollars(account.debt_nano),
        per_day=format_dollars(found.per_day_nano),
        lasts_until=rfc3339(found.lasts_until_ms) if found.lasts_until_ms is not None else None,
        low_balance=format_dollars(account.low_balance_nano),
        is_low=account.balance_nano < account.low_balance_nano,
    )


ROUTES: Routes = (
    get("/credit", credit_page),
    post("/credit/voucher", redeem),
    post("/credit/notice", change_notice),
    Endpoint("GET", "/credit", "The balance, what is held, and how long it lasts", get_credit, returns=CreditView),
    Endpoint("POST", "/vouchers/redeem", "Redeem a voucher", redeem_by_api, VoucherForm, RedeemedView),
    Endpoint("PUT", "/credit/notice", "Set the balance below which you are told", change_notice_by_api, NoticeForm),
)
