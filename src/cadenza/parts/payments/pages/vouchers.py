"""Vouchers: the form that redeems one, and the operator's page, which makes them, shows their codes once, and ends one.

Guesses of codes are rate-limited by account and by network; a correct code does not count.
"""

import msgspec
from starlette.responses import Response

from cadenza.control.money.idempotency import make_reference
from cadenza.core.orders import REFERENCE, fields_of, typed_values
from cadenza.core.public import to_record
from cadenza.core.rates import Rate
from cadenza.fleet.limits import Limit, network_limits, release
from cadenza.parts.payments.voucher_rows import VoucherOrder, list_newest
from cadenza.parts.payments.vouchers import WrongCode, create_vouchers, redeem_voucher, revoke_voucher
from cadenza.parts.site.money.credit import credit_page
from cadenza.parts.site.routes import Routes, endpoint, form, get
from cadenza.parts.site.sign_in import throttle
from cadenza.parts.site.visit import Visit

PAGE = "/operator/vouchers"
SHOWN = 50
ACCOUNT_GUESSES = Rate(1 / 60, 10)
NETWORK_GUESSES = Rate(1 / 20, 30)


class VoucherForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The code of a voucher."""

    code: str


class RedeemedView(msgspec.Struct, frozen=True):
    """What a voucher added, and the new balance."""

    amount: str
    balance: str
    currency: str = "USD"
    object: str = "voucher"


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


async def vouchers_page(visit: Visit, codes: tuple[str, ...] = ()) -> Response:
    found = await list_newest(visit.store, SHOWN + 1)
    return visit.page(
        "payments/vouchers.html",
        vouchers=found[:SHOWN],
        has_more=len(found) > SHOWN,
        codes=codes,
        fields=[one for one in fields_of(VoucherOrder) if one.name != REFERENCE],
        form={**typed_values(VoucherOrder), **visit.typed},
        reference=make_reference(),  # so that a form that is sent twice makes vouchers once
    )


async def create(visit: Visit, order: VoucherOrder) -> Response:
    made = await create_vouchers(visit.store, order, visit.operator, visit.now_ms)
    return await vouchers_page(visit, tuple(code for code, _ in made))


async def revoke(visit: Visit, voucher: str) -> None:
    await revoke_voucher(visit.store, voucher, visit.operator, visit.now_ms)


ROUTES: Routes = (
    form("/credit/voucher", redeem, "/credit", "redeemed", on_error=credit_page),
    endpoint("POST", "/vouchers/redeem", "Redeem a voucher", redeem, "credit:write"),
    get(PAGE, vouchers_page),
    form(PAGE, create, PAGE, on_error=vouchers_page, needs_proof=True),
    form(f"{PAGE}/revoke", revoke, PAGE, "voucher-revoked", on_error=vouchers_page, needs_proof=True),
)
