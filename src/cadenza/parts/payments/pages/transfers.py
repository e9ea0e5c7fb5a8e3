"""Bank transfers on the operator's page of an account: one that has arrived, and what was sent back of it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from cadenza.core.money import format_dollars
from cadenza.parts.payments.transfers import Transfer, TransferRefund, find_transfer, record_transfer, refund_transfer
from cadenza.parts.site import mailer as notices
from cadenza.parts.site.errors import BadForm
from cadenza.parts.site.operator.accounts import ONE, account_of, account_page
from cadenza.parts.site.operator.fields import read_amount
from cadenza.parts.site.operator.views import OperatorAccount, view_account
from cadenza.parts.site.routes import Routes, endpoint, form
from cadenza.parts.site.visit import Visit


class PaidTransfer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bank transfer that has arrived: dollars above zero, its reference, which is recorded once, and a note."""

    amount: str
    reference: str
    note: str = ""


class SentBack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was sent back of the bank transfer with the reference `transfer`, and the reason, which the owner sees.

    An empty part is all that is left of it. The `reference` is what the bank calls the refund, and makes it idempotent.
    """

    transfer: str
    reason: str
    part: str = ""
    reference: str = ""


async def record(visit: Visit, given: PaidTransfer) -> OperatorAccount:
    account, transfer = await account_of(visit), Transfer(read_amount(given.amount), given.reference, given.note)
    paid = await record_transfer(visit.store, account.email, transfer, visit.operator, visit.now_ms)
    visit.context.send_notice(account.email, notices.CREDIT_ADDED, format_dollars(transfer.amount_nano))
    return view_account(paid)


async def send_back(visit: Visit, given: SentBack) -> OperatorAccount:
    account, transfer = await account_of(visit), given.transfer.strip()
    part_nano = read_amount(given.part) if given.part.strip() else None
    found = await find_transfer(visit.store, transfer)
    if found is None or found.account_id != account.id:
        raise BadForm("This account has no bank transfer with this reference.")
    refund = TransferRefund(transfer, part_nano, given.reason, given.reference)
    done = await refund_transfer(visit.store, refund, visit.operator, visit.now_ms)
    taken_nano = done.payment.refunded_nano - found.refunded_nano
    if done.earlier_at is None and account.state != "erased":
        visit.context.send_notice(account.email, notices.CREDIT_TAKEN, format_dollars(taken_nano))
    return view_account(await account_of(visit))


async def panel_values(_visit: Visit) -> Mapping[str, Any]:
    return {}


ROUTES: Routes = (
    form(f"{ONE}/transfers", record, ONE, "credit-added", on_error=account_page, needs_proof=True),
    form(f"{ONE}/transfers/refund", send_back, ONE, "credit-taken-back", on_error=account_page, needs_proof=True),
    endpoint(
        "POST",
        f"{ONE}/transfers",
        "Record a payment by bank transfer",
        record,
        "operator.credit:write",
        needs_proof=True,
    ),
    endpoint(
        "POST",
        f"{ONE}/transfers/refund",
        "Record that a bank transfer was sent back, or a part of it",
        send_back,
        "operator.credit:write",
        needs_proof=True,
    ),
)
