"""What the events of the payment provider do to payments and to credit.

    event           payment before   after                     credit
    Paid            open, expired    paid                      the amount is granted, less what was refunded before
    Expired         open             expired                   none
    Refunded        any              returned if all of it,    what was refunded since the last such event is taken
                                     else as before
    RefundFailed    any              paid, or as before        what that refund took is given back
    Disputed        paid             disputed                  the disputed amount is taken
    DisputeClosed   paid, disputed   won: paid                 won: what the dispute took is given back
                    or returned      lost: returned, or paid   lost: the amount is taken, if it was not before
                                     if part of it is left

What is taken of a payment is what was refunded, what lost disputes were about and what open disputes are about, and at
most its amount. What was refunded is the latest total that the provider reported, by its clock, less the refunds that
failed since. So events may come in any order: those of refunds and disputes whose payment is not paid, or not known,
are kept by the provider's id of the payment, and applied when it is paid. If that never comes, they stay: only the
provider can send them, and those of another program on the same account look the same.

Each event is applied once (by its id), each payment grants once, and each dispute takes once (by the source of the
entry) and is closed once. Credit that is held or spent already is taken later, as a debt, which is in the audit log
too. Winning a dispute cancels its own debt first. Any other event changes nothing.
"""

from typing import Literal

import msgspec

from cadenza.core.money import format_dollars
from cadenza.core.records import Operator
from cadenza.fleet.changes import make_change
from cadenza.ledger import credit, payments
from cadenza.ledger.origins import CreditMove, Origin
from cadenza.ledger.payments import NotedEvent, Payment, PaymentIds, PaymentState
from cadenza.parts.payments.events import (
    RETURN_NOTE,
    DisputeClosed,
    Disputed,
    Expired,
    Fact,
    KeptFact,
    Paid,
    PaymentEvent,
    Refunded,
    RefundFailed,
)
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import audit_events
from cadenza.store.tables.audit_events import AuditEvent

DISPUTE_NOTE = "disputed card payment"
FAILED_NOTE = "a refund of a card payment failed"
Result = Literal["done", "repeated", "waiting", "unknown payment", "out of order", "wrong amount"]


async def apply_event(store: Store, provider: str, event: PaymentEvent, now_ms: int) -> Result:
    """Apply an event, in one transaction, if it is new and fits the payment."""
    subject = event.subject
    if needed_nano := _taken_by(event.fact):
        found = await payments.find(store, provider, subject)
        if found:
            await credit.gather_free(store, found.account_id, min(needed_nano, found.amount_nano))

    return await make_change(store, lambda tx: apply_once(tx, provider, event, now_ms))


def apply_once(tx: Transaction, provider: str, event: PaymentEvent, now_ms: int) -> Result:
    """Apply an event, or keep it until its payment is paid. One that was noted before changes nothing."""
    reference = _key(provider, event.subject.reference)
    if reference:
        payments.lock_reference(tx, reference, now_ms)
    payment = payments.lock(tx, provider, event.subject)
    if payment is None and not (reference and isinstance(event.fact, KeptFact)):
        return "unknown payment"
    if not payments.note_event(tx, _noted(event), now_ms, reference):
        return "repeated"
    if payment is None:
        return "waiting"
    if event.subject.reference:
        payment = msgspec.structs.replace(payment, reference=event.subject.reference)
    return apply_to(tx, payment, event, Operator(provider), now_ms)


def _key(provider: str, reference: str | None) -> str | None:
    """What events are kept by."""
    return f"{provider}:{reference}" if reference else None


def _noted(event: PaymentEvent) -> NotedEvent:
    fact = msgspec.json.encode(event.fact).decode() if isinstance(event.fact, KeptFact) else None
    return NotedEvent(event.id, event.kind, fact, event.happened_at)


def apply_to(tx: Transaction, payment: Payment, event: PaymentEvent, by: Operator, now_ms: int) -> Result:
    """Apply an event that is new to a payment that is locked. `by` is who did it, for the audit log."""
    return _Change(tx, payment, by, now_ms).apply(event)


def _taken_by(fact: Fact) -> int:
    """The most credit that an event takes back."""
    match fact:
        case Refunded():
            return fact.total_nano or 0
        case Disputed() | DisputeClosed(result="lost"):
            return fact.amount_nano or 0
    return 0


class _Change:
    """Applies one event to one payment, which is locked."""

    def __init__(self, tx: Transaction, payment: Payment, by: Operator, now_ms: int) -> None:
        self._tx = tx
        self._payment = payment
        self._by = by
        self._now_ms = now_ms

    def apply(self, event: PaymentEvent) -> Result:  # noqa: PLR0911 one for each fact
        match event.fact:
            case Paid():
                return self._pay(event.fact)
            case Expired():
                return self._expire()
            case Refunded():
                return self._refund(event.fact, event)
            case RefundFailed():
                return self._fail_refund(event.fact, event)
            case Disputed():
                return self._dispute(event.fact, event.kind)
            case DisputeClosed(result="won"):
                return self._win(event.fact, event)
            case DisputeClosed():
                return self._lose(event.fact, event)

    def _pay(self, fact: Paid) -> Result:
        payment = self._payment
        if payment.state not in ("open", "expired"):
            return "out of order"
        if fact.amount_nano != payment.amount_nano:
            self._log("payment.mismatch", "the amount or currency that was paid is not what was asked for: no credit")
            return "wrong amount"
        kept = self._kept_events()
        self._apply_each(kept, (Refunded, RefundFailed))
        payment = self._payment
        amount_nano = payment.amount_nano - payment.taken_nano
        if amount_nano:
            self._give(CreditMove(payment.account_id, "payment", amount_nano, fact.note, self._now_ms, payment.id))
        self._write(payment, "paid" if amount_nano else "returned")
        self._log("payment.paid", f"{format_dollars(payment.amount_nano)} dollars")
        self._apply_each(kept, (Disputed, DisputeClosed))
        return "done"

    def _apply_each(self, events: list[PaymentEvent], facts: tuple[type[Fact], ...]) -> None:
        """Apply those of these kinds that have waited. Those that were applied change nothing."""
        for event in events:
            if isinstance(event.fact, facts):
                self.apply(event)

    def _expire(self) -> Result:
        if self._payment.state != "open":
            return "out of order"
        self._write(self._payment, "expired")
        return "done"

    def _refund(self, fact: Refunded, event: PaymentEvent) -> Result:
        payment = self._payment
        if fact.total_nano is None:
            return "wrong amount"
        refunded_nano = self._count_refunded(event)
        if refunded_nano == payment.refunded_nano:
            return "out of order"
        self._change_refunded(refunded_nano, fact.note, event.id)
        self._log("payment.refund", f"{format_dollars(refunded_nano - payment.refunded_nano)} dollars")
        return "done"

    def _fail_refund(self, fact: RefundFailed, event: PaymentEvent) -> Result:
        payment = self._payment
        if fact.amount_nano is None:
            return "wrong amount"
        if not self._note_once(f"{fact.refund}:failed", event.kind):
            return "out of order"
        refunded_nano = self._count_refunded(event)
        self._change_refunded(refunded_nano, FAILED_NOTE, event.id)
        detail = f"{format_dollars(payment.refunded_nano - refunded_nano)} dollars are no longer refunded"
        self._log("payment.refund_failed", detail)
        return "done"

    def _count_refunded(self, event: PaymentEvent) -> int:
        """The latest total, less the refunds that failed since. `event` is of a refund, and may be one of those kept.

        Without failures it is the largest total. Of a payment that an older program has handled, no total is kept.
        """
        totals, failed = list[tuple[int, int]](), dict[str, tuple[int, int]]()
        for one in (*self._kept_events(), event):
            match one.fact:
                case Refunded(int(total_nano)):
                    totals.append((one.happened_at, total_nano))
                case RefundFailed(refund, int(amount_nano)):
                    failed[refund] = (one.happened_at, amount_nano)
        known_nano, whole_nano = self._payment.refunded_nano, self._payment.amount_nano
        if not failed:
            return min(whole_nano, max(known_nano, *(total_nano for _, total_nano in totals)))
        if totals:
            at, known_nano = max(totals)
            failed_nano = sum(amount_nano for failed_at, amount_nano in failed.values() if failed_at >= at)
        else:
            assert isinstance(event.fact, RefundFailed)
            failed_nano = event.fact.amount_nano or 0
        return max(0, min(whole_nano, known_nano) - failed_nano)

    def _change_refunded(self, refunded_nano: int, note: str, source: str) -> None:
        payment = self._payment
        after = msgspec.structs.replace(payment, refunded_nano=refunded_nano)
        if not _is_unpaid(payment):
            self._move("return", after.taken_nano - payment.taken_nano, note, source)
        self._write(after)

    def _dispute(self, fact: Disputed, kind: str) -> Result:
        payment, dispute = self._payment, fact.dispute
        if fact.amount_nano is None:
            return "wrong amount"
        if _is_unpaid(payment):
            return "waiting"
        amount_nano = min(fact.amount_nano, payment.amount_nano)
        is_known = credit.taken_by(self._tx, dispute) or payments.has_event(self._tx, _closed(dispute))
        if is_known or not self._note_once(_opened(dispute), kind, Disputed(dispute, amount_nano)):
            return "out of order"
        after = msgspec.structs.replace(payment, disputed_nano=payment.disputed_nano + amount_nano)
        self._move("dispute", after.taken_nano - payment.taken_nano, DISPUTE_NOTE, dispute)
        self._write(after)
        self._log("payment.dispute", f"{format_dollars(fact.amount_nano)} dollars")
        return "done"

    def _win(self, fact: DisputeClosed, event: PaymentEvent) -> Result:
        """Give back what the dispute took, but for what was refunded meanwhile: that is taken as a refund.

        What it did not take, because a refund had that has failed since, is given back as paid credit.
        """
        payment = self._payment
        if _is_unpaid(payment):
            return "waiting"
        if not self._note_once(_closed(fact.dispute), event.kind):
            return "out of order"
        after = self._without_dispute(fact.dispute)
        credit.lock_money(self._tx, payment.account_id)
        amount_nano, granted_nano = credit.amount_of_source(self._tx, fact.dispute) or (0, 0)
        debt = credit.cancel_debt(self._tx, payment.account_id, fact.dispute)
        taken_nano = debt.paid_nano - amount_nano
        more_nano = payment.taken_nano - after.taken_nano - taken_nano - debt.left_nano
        back_nano = taken_nano + max(0, more_nano)
        if back_nano:
            self._give(
                CreditMove(
                    payment.account_id,
                    "dispute",
                    back_nano,
                    "a disputed card payment stands",
                    self._now_ms,
                    _closed(fact.dispute),
                    returned_nano=min(taken_nano, debt.granted_nano - granted_nano),
                )
            )
        self._move("return", max(0, -more_nano), RETURN_NOTE, event.id)
        self._write(after)
        detail = f"{format_dollars(back_nano)} dollars were given back"
        if debt.left_nano:
            detail += f", and a debt of {format_dollars(debt.left_nano)} dollars was cancelled"
        self._log("payment.dispute_won", detail)
        return "done"

    def _lose(self, fact: DisputeClosed, event: PaymentEvent) -> Result:
        payment = self._payment
        if fact.amount_nano is None:
            return "wrong amount"
        if _is_unpaid(payment):
            return "waiting"
        if not self._note_once(_closed(fact.dispute), event.kind):
            return "out of order"
        lost_nano = min(payment.amount_nano, payment.lost_nano + fact.amount_nano)
        after = msgspec.structs.replace(self._without_dispute(fact.dispute), lost_nano=lost_nano)
        source = event.id if credit.taken_by(self._tx, fact.dispute) else fact.dispute
        self._move("dispute", after.taken_nano - payment.taken_nano, DISPUTE_NOTE, source)
        self._write(after)
        self._log("payment.dispute_lost", f"{format_dollars(fact.amount_nano)} dollars")
        return "done"

    def _kept_events(self) -> list[PaymentEvent]:
        """The events of refunds and disputes of this payment, in the order in which they came."""
        reference = _key(self._payment.provider, self._payment.reference)
        noted = payments.list_events(self._tx, reference) if reference else []
        return [
            PaymentEvent(one.id, one.kind, PaymentIds(), msgspec.json.decode(one.fact, type=KeptFact), one.happened_at)
            for one in noted
            if one.fact
        ]

    def _note_once(self, name: str, kind: str, fact: Disputed | None = None) -> bool:
        """Note that something has happened, whichever event said so. False if it was noted before."""
        said = msgspec.json.encode(fact).decode() if fact else None
        return payments.note_event(self._tx, NotedEvent(name, kind, said), self._now_ms)

    def _without_dispute(self, dispute: str) -> Payment:
        """The payment without this dispute, if that is open."""
        opened = payments.find_fact(self._tx, _opened(dispute))
        if opened:
            amount_nano = msgspec.json.decode(opened, type=Disputed).amount_nano or 0
        else:  # an older program, which noted no opening, counted what the dispute took
            amount_nano = credit.taken_by(self._tx, dispute)
        return msgspec.structs.replace(self._payment, disputed_nano=self._payment.disputed_nano - amount_nano)

    def _move(self, origin: Origin, amount_nano: int, note: str, source: str) -> None:
        """Take the amount back, or give it if it is below zero. What cannot be taken at once is a debt."""
        account_id = self._payment.account_id
        if amount_nano < 0:
            self._give(CreditMove(account_id, origin, -amount_nano, note, self._now_ms, source))
        if amount_nano <= 0:
            return
        taken = credit.take(self._tx, CreditMove(account_id, origin, amount_nano, note, self._now_ms, source))
        if taken.owed_nano:
            owed = format_dollars(taken.owed_nano)
            self._log("payment.debt", f"{owed} of {format_dollars(amount_nano)} dollars are a debt of the account")

    def _give(self, move: CreditMove) -> None:
        if credit.give(self._tx, move) is None:  # not `assert`: the payment must not count as credited
            raise AssertionError("a balance above its limit")

    def _write(self, payment: Payment, state: PaymentState | None = None) -> None:
        """Write the payment. A state that is not given follows from what was taken, once it was paid."""
        if state is None and not _is_unpaid(payment):
            is_returned = payment.returned_nano == payment.amount_nano
            state = "disputed" if payment.disputed_nano else "returned" if is_returned else "paid"
        self._payment = msgspec.structs.replace(payment, state=state or payment.state, changed_at=self._now_ms)
        payments.change(self._tx, self._payment)

    def _log(self, event: str, detail: str) -> None:
        payment = self._payment
        audit_events.add(self._tx, AuditEvent(self._now_ms, self._by, event, payment.account_id, payment.id, detail))


def _is_unpaid(payment: Payment) -> bool:
    return payment.state in ("open", "expired")


def _opened(dispute: str) -> str:
    return f"{dispute}:opened"


def _closed(dispute: str) -> str:
    return f"{dispute}:closed"
