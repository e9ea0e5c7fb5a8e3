"""Vouchers: an operator makes codes, and the first account that redeems one gets its credit.

A code is shown once, when it is made. Redeeming is one transaction: the voucher is marked and its grant is written
together, and the store refuses a second grant of the same voucher.
"""

import secrets

import msgspec

from cadenza.control.money.credit import expiry_of
from cadenza.control.money.idempotency import make_command
from cadenza.core.errors import ControlError
from cadenza.core.money import format_dollars
from cadenza.core.orders import check_order, copied
from cadenza.core.records import Operator, Owner
from cadenza.core.spans import DAY_MS
from cadenza.fleet.changes import make_change
from cadenza.ledger import credit
from cadenza.ledger.credit import BALANCE_NANO_LIMIT
from cadenza.ledger.origins import CreditMove
from cadenza.parts.payments import voucher_rows as vouchers
from cadenza.parts.payments.voucher_codes import code_prefix, digest_code, make_code, normal_code
from cadenza.parts.payments.voucher_rows import Voucher, VoucherOrder
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import audit_events
from cadenza.store.tables.audit_events import AuditEvent


class Redeemed(msgspec.Struct, frozen=True):
    """What a voucher gave, and the balance since."""

    amount_nano: int
    balance_nano: int


class WrongCode(ControlError):
    """No voucher has this code. Callers limit the rate of these, because they may be guesses."""


async def create_vouchers(store: Store, order: VoucherOrder, by: Operator, now_ms: int) -> list[tuple[str, Voucher]]:
    """Make vouchers and return their codes, which are not stored."""
    ordered, former = check_order(order), (order.amount_nano, order.count)
    expires_at = None if order.expires_days is None else now_ms + order.expires_days * DAY_MS
    codes = {make_code(): "vch_" + secrets.token_urlsafe(12) for _ in range(order.count)}
    made = [
        copied(Voucher, order, id=voucher_id, prefix=code_prefix(code), created_at=now_ms, expires_at=expires_at)
        for code, voucher_id in codes.items()
    ]
    command = make_command(by, "voucher.create", (ordered,), order.reference, made[0].id, former)

    def create(tx: Transaction) -> None:
        claim = command.claim(tx, now_ms)
        if claim.earlier:
            raise ControlError(
                f"With this reference, vouchers were made before: {order.count} of {format_dollars(order.amount_nano)} "
                f"dollars, the first with the id {claim.earlier.subject}. A code is shown only once: revoke them "
                "('cadenza voucher list' shows them), and make others without the reference."
            )
        if not claim.is_new:
            return
        vouchers.add_all(tx, [(digest_code(code), one) for code, one in zip(codes, made, strict=True)])
        detail = f"{order.count} of {format_dollars(order.amount_nano)} dollars"
        audit_events.add(tx, AuditEvent(now_ms, by, "voucher.create", subject=made[0].id, detail=detail))

    await command.run(lambda: store.transact(create))
    return list(zip(codes, made, strict=True))


async def redeem_voucher(store: Store, owner: Owner, typed: str, now_ms: int) -> Redeemed:
    """Give the account the credit of a voucher. The holder of a code is told why it no longer works."""
    code = normal_code(typed)
    if code is None:
        raise WrongCode("This is not a code: it looks like CDZ-XXXX-XXXX-XXXX-XXXX-XXXX. Check it and try again.")
    digest, account_id = digest_code(code), owner.account_id

    def redeem(tx: Transaction) -> Redeemed:
        voucher = vouchers.redeem(tx, digest, account_id, now_ms)
        if voucher is None:
            raise _why_not(vouchers.find(tx, digest), account_id)
        balance_nano = credit.give(tx, _credit_of(voucher, account_id, now_ms))
        if balance_nano is None:
            raise ControlError(
                f"With this voucher the balance would reach its limit of {format_dollars(BALANCE_NANO_LIMIT)} dollars. "
                "The voucher is still good."
            )
        detail = f"{voucher.prefix}, {format_dollars(voucher.amount_nano)} dollars"
        audit_events.add(tx, AuditEvent(now_ms, owner, "voucher.redeem", account_id, voucher.id, detail))
        return Redeemed(voucher.amount_nano, balance_nano)

    return await make_change(store, redeem)


async def revoke_voucher(store: Store, text: str, by: Operator, now_ms: int) -> Voucher:
    """Make an unused voucher expire now. Name it by its id, its prefix or its code."""
    code = normal_code(text)

    def revoke(tx: Transaction) -> Voucher:
        if code:
            found = vouchers.find(tx, digest_code(code))
            matches = [] if found is None else [found]
        else:
            matches = vouchers.find_by_id_or_prefix(tx, text)
        if not matches:
            raise ControlError("There is no such voucher. 'cadenza voucher list' shows all of them.")
        if len(matches) > 1:
            ids = ", ".join(one.id for one in matches)
            raise ControlError(f"More than one voucher matches: name it by id, one of {ids}.")
        [voucher] = matches
        if not vouchers.revoke(tx, voucher.id, now_ms):
            state = voucher.state(now_ms)
            raise ControlError(f"The voucher {voucher.prefix} ({voucher.id}) is not unused any more: it is {state}.")
        audit_events.add(tx, AuditEvent(now_ms, by, "voucher.revoke", subject=voucher.id, detail=voucher.prefix))
        return voucher

    return await store.transact(revoke)


def _credit_of(voucher: Voucher, account_id: str, now_ms: int) -> CreditMove:
    note, expires_at = f"voucher {voucher.prefix}", expiry_of(voucher.credit_days, now_ms)
    return CreditMove(account_id, "voucher", voucher.amount_nano, note, now_ms, voucher.id, expires_at=expires_at)


def _why_not(voucher: Voucher | None, account_id: str) -> ControlError:
    if voucher is None:
        return WrongCode("No voucher has this code. Check it and try again.")
    if voucher.redeemed_at is None:
        return ControlError("This voucher has expired. Ask for another where you got it.")
    if voucher.redeemed_by == account_id:
        return ControlError(
            f"You have redeemed this voucher already: its {format_dollars(voucher.amount_nano)} dollars are in "
            "your statement."
        )
    return ControlError("This voucher was redeemed already.")
