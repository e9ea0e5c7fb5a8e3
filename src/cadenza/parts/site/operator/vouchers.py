"""Vouchers for operators: the newest, new ones with their codes, which are shown once, and the end of an unused one."""

from starlette.responses import Response

from cadenza.control.money.idempotency import make_reference
from cadenza.parts.payments.vouchers import VoucherOrder, create_vouchers, list_newest, revoke_voucher
from cadenza.parts.site.operator.fields import read_amount, read_days, read_number
from cadenza.parts.site.routes import Routes, form, get
from cadenza.parts.site.visit import Visit

PAGE = "/operator/vouchers"
SHOWN = 50


async def vouchers_page(visit: Visit, codes: tuple[str, ...] = ()) -> Response:
    found = await list_newest(visit.store, SHOWN + 1)
    return visit.page(
        "operator/vouchers.html",
        vouchers=found[:SHOWN],
        has_more=len(found) > SHOWN,
        codes=codes,
        reference=make_reference(),  # so that a form that is sent twice makes vouchers once
    )


async def create(  # noqa: PLR0913, PLR0917 the fields of the form
    visit: Visit,
    amount: str,
    count: str = "1",
    expires_days: str = "",
    credit_days: str = "",
    note: str = "",
    reference: str = "",
) -> Response:
    order = VoucherOrder(
        read_amount(amount),
        read_number(count, "how many vouchers to make, like 1"),
        read_days(expires_days),
        note,
        reference,
        read_days(credit_days),
    )
    made = await create_vouchers(visit.store, order, visit.operator, visit.now_ms)
    return await vouchers_page(visit, tuple(code for code, _ in made))


async def revoke(visit: Visit, voucher: str) -> None:
    await revoke_voucher(visit.store, voucher, visit.operator, visit.now_ms)


ROUTES: Routes = (
    get(PAGE, vouchers_page),
    form(PAGE, create, PAGE, on_error=vouchers_page, needs_proof=True),
    form(f"{PAGE}/revoke", revoke, PAGE, "voucher-revoked", on_error=vouchers_page, needs_proof=True),
)
