"""What was paid by day, and what vouchers are worth: for the operator's overview."""

import msgspec
from sqlalchemy import and_, bindparam, case, func, or_, select, text

from cadenza.core.spans import DAY_MS
from cadenza.store.schema import payments, vouchers
from cadenza.store.statements import Statement, total
from cadenza.store.store import Store

DAYS = 30

_IS_PAID = or_(*(payments.c.state == state for state in ("paid", "returned", "disputed")))
PAID_BY_DAY = Statement(
    select(
        payments.c.created_at // DAY_MS, func.count(), total(payments.c.amount_nano), total(payments.c.returned_nano)
    )
    .where(payments.c.created_at >= bindparam("start"), _IS_PAID)
    .group_by(text("1"))
    .order_by(text("1"))
)
_IS_OPEN = and_(
    vouchers.c.redeemed_at.is_(None), or_(vouchers.c.expires_at.is_(None), vouchers.c.expires_at > bindparam("now"))
)
_IS_REDEEMED = vouchers.c.redeemed_at >= bindparam("start")
VOUCHERS = Statement(
    select(
        total(case((_IS_OPEN, 1), else_=0)),
        total(case((_IS_OPEN, vouchers.c.amount_nano), else_=0)),
        total(case((_IS_REDEEMED, 1), else_=0)),
        total(case((_IS_REDEEMED, vouchers.c.amount_nano), else_=0)),
    )
)


class PaidDay(msgspec.Struct, frozen=True):
    """What was paid on a day since the epoch, and what of it was returned since."""

    day: int
    payments: int
    paid_nano: int
    returned_nano: int


class VoucherTotals(msgspec.Struct, frozen=True):
    """Vouchers that can be redeemed, and those that were redeemed since a time."""

    open_count: int
    open_nano: int
    redeemed_count: int
    redeemed_nano: int


class Takings(msgspec.Struct, frozen=True):
    """Payments of the last 30 days, by day, and vouchers."""

    start_ms: int
    days: list[PaidDay]
    vouchers: VoucherTotals


async def get_takings(store: Store, now_ms: int) -> Takings:
    start_ms = (now_ms // DAY_MS - DAYS + 1) * DAY_MS
    days = [PaidDay(*map(int, row)) for row in await store.report(PAID_BY_DAY, {"start": start_ms})]
    [row] = await store.report(VOUCHERS, {"start": start_ms, "now": now_ms})
    return Takings(start_ms, days, VoucherTotals(*map(int, row)))
