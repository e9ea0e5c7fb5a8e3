"""Payments by bank transfer: an operator records that one has arrived, and what was sent back of it.

The credit is paid for, like that of a card payment. A transfer is recorded once by its reference, whoever records it
and however it is spelled: the same reference again is refused, with another amount or account too. A refund takes the
credit back as that of a card payment does, once by its own reference. The money itself is sent back at the bank. Both
references are in the notes of the entries, so that a bank statement can be compared with them.
"""

import secrets

import msgspec

from cadenza.control.account.accounts import find_account, get_account
from cadenza.control.money.credit import check_limit, check_note, check_reason
from cadenza.control.money.idempotency import FOR_ALL, digest_of, former_digest, make_command
from cadenza.core.errors import ControlError
from cadenza.core.formats import rfc3339
from cadenza.core.money import NANO_PER_CENT, format_dollars
from cadenza.core.records import Operator
from cadenza.fleet.changes import make_change
from cadenza.ledger import credit, payments
from cadenza.ledger.payments import Payment, PaymentIds
from cadenza.parts.payments.events import Paid, PaymentEvent, Refunded
from cadenza.parts.payments.payments import apply_to
from cadenza.store.store import Store, Transaction
from cadenza.store.tables.accounts import Account

PROVIDER = FOR_ALL
REFERENCE_CHARS_MAX = 100


class Transfer(msgspec.Struct, frozen=True):
    """A bank transfer that has arrived. The reference is what the bank or the invoice calls it."""

    amount_nano: int
    reference: str
    note: str = ""


class TransferRefund(msgspec.Struct, frozen=True):
    """What was sent back of a transfer: a part of it, or all that is left (None), and why.

    The `reference` is what the bank calls it. A repetition with the same one changes nothing.
    """

    transfer: str  # its reference, or the id of the payment
    part_nano: int | None
    reason: str
    reference: str = ""


class RefundedTransfer(msgspec.Struct, frozen=True):
    """The payment after a refund. `earlier_at` is set if an earlier call with the same reference made it."""

    payment: Payment
    earlier_at: int | None = None


async def record_transfer(store: Store, email: str, transfer: Transfer, by: Operator, now_ms: int) -> Account:
    """Add the credit that a transfer paid for, and return the account. It pays a debt of the account first."""
    amount_nano, reference = transfer.amount_nano, transfer.reference.strip()
    if amount_nano <= 0 or amount_nano % NANO_PER_CENT:
        raise ControlError("The amount of a bank transfer is above zero, in whole cents.")
    if not reference or len(reference) > REFERENCE_CHARS_MAX or not reference.isprintable():
        raise ControlError(
            f"A bank transfer needs its reference, like INV-17: one line of at most {REFERENCE_CHARS_MAX} characters."
        )
    note = f"bank transfer {reference}" + (f": {transfer.note}" if transfer.note else "")
    check_note(note)
    account_id, payment_id = (await get_account(store, email)).id, "pay_" + secrets.token_urlsafe(18)
    command = make_command(Operator(PROVIDER), "payment.transfer", (), reference, payment_id)  # one for all who record
    payment = Payment(
        id=payment_id,
        account_id=account_id,
        provider=PROVIDER,
        checkout=payment_id,
        reference=reference,
        amount_nano=amount_nano,
        created_at=now_ms,
        changed_at=now_ms,
    )

    def record(tx: Transaction) -> Account:
        account, claim = find_account(tx, email), command.claim(tx, now_ms)
        if claim.earlier:
            raise _recorded_before(tx, claim.earlier.subject)
        if claim.is_new:
            check_limit(account, amount_nano)
            payments.add(tx, payment)
            apply_to(tx, payment, PaymentEvent(payment_id, "", PaymentIds(), Paid(amount_nano, note)), by, now_ms)
        return find_account(tx, email)

    return await command.run(lambda: make_change(store, record))


def _recorded_before(tx: Transaction, payment_id: str) -> ControlError:
    earlier, entry = payments.lock(tx, PROVIDER, PaymentIds(payment_id)), credit.find_entry(tx, payment_id)
    assert earlier
    assert entry
    return ControlError(
        f"The bank transfer {earlier.reference!r} was recorded at {rfc3339(earlier.created_at)} for {entry.email}, "
        f"with {format_dollars(earlier.amount_nano)} dollars, as {earlier.id}. Nothing was changed. "
        "Another transfer needs another reference."
    )


async def find_transfer(store: Store, reference: str) -> Payment | None:
    """The transfer with this reference, however it is spelled, or with this id of the payment."""
    if len(reference) > REFERENCE_CHARS_MAX:  # none is so long, and to compare it could take very long
        return None
    use = await credit.find_reference(store, digest_of(PROVIDER, reference)) or await credit.find_reference(
        store, former_digest(PROVIDER, reference)
    )
    return await payments.find(store, PROVIDER, PaymentIds(use.subject if use else reference))


async def refund_transfer(store: Store, refund: TransferRefund, by: Operator, now_ms: int) -> RefundedTransfer:
    """Take back the credit of a transfer, or of a part of it. What is not free is taken later, as a debt."""
    reason = check_reason("refund", refund.reason)
    found = await find_transfer(store, refund.transfer)
    if found is None:
        raise ControlError(f"No bank transfer has the reference {refund.transfer!r}.")
    reference = refund.reference.strip()
    if len(reference) > REFERENCE_CHARS_MAX or not reference.isprintable():
        raise ControlError(f"The reference of a refund is one line of at most {REFERENCE_CHARS_MAX} characters.")
    command = make_command(Operator(PROVIDER), "payment.refund", (found.id, refund.part_nano), reference)
    note = " ".join(filter(None, ("refund", reference, f"of bank transfer {found.reference}: {reason}")))
    await credit.gather_free(store, found.account_id, refund.part_nano or found.amount_nano)

    def take(tx: Transaction) -> RefundedTransfer:
        payment = payments.lock(tx, PROVIDER, PaymentIds(found.id))
        assert payment
        claim = command.claim(tx, now_ms)
        if not claim.is_new:
            return RefundedTransfer(payment, claim.earlier_at)
        left_nano = payment.amount_nano - payment.refunded_nano
        part_nano = left_nano if refund.part_nano is None else refund.part_nano
        if not 0 < part_nano <= left_nano or part_nano % NANO_PER_CENT:
            raise ControlError(
                f"{format_dollars(left_nano)} of the {format_dollars(payment.amount_nano)} dollars of the bank "
                f"transfer {payment.reference!r} can be refunded, in whole cents."
            )
        fact = Refunded(payment.refunded_nano + part_nano, note)
        apply_to(tx, payment, PaymentEvent(command.source, "", PaymentIds(), fact), by, now_ms)
        return RefundedTransfer(msgspec.structs.replace(payment, refunded_nano=payment.refunded_nano + part_nano))

    return await command.run(lambda: make_change(store, take))
