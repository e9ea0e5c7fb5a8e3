"""Refunds of requests by an operator: all that a request cost, or a part of it, with a reason that the owner sees."""

import msgspec

from cadenza.control.money.credit import check_reason
from cadenza.control.money.idempotency import make_command
from cadenza.core.errors import ControlError
from cadenza.core.money import format_dollars
from cadenza.core.records import Operator
from cadenza.fleet.changes import make_change
from cadenza.ledger import credit, refunds
from cadenza.ledger.credit import BALANCE_NANO_LIMIT
from cadenza.ledger.refunds import ChargedRequest
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import audit_events
from cadenza.store.tables.audit_events import AuditEvent

ID_CHARS_MAX = 100
NOT_CHARGED = (
    "No request with this id was charged. It is the id of the reply, which begins with chatcmpl-: "
    "the statement and 'cadenza ledger export' have it. "
    "A bank transfer is refunded by its reference."
)


class Refund(msgspec.Struct, frozen=True):
    """What was given back of what a request had cost."""

    completion_id: str
    email: str
    amount_nano: int
    cost_nano: int

    @property
    def sentence(self) -> str:
        return (
            f"Refunded {format_dollars(self.amount_nano)} of the {format_dollars(self.cost_nano)} dollars that "
            f"{self.completion_id} cost, to {self.email}."
        )


async def refund_request(
    store: Store, completion_id: str, part_nano: int | None, reason: str, by: Operator, now_ms: int
) -> Refund:
    """Give back a part of what a request cost; None: all of it. It takes effect once, also if its answer is lost."""
    reason = check_reason("refund", reason)
    if part_nano == 0:
        raise ControlError("The part to refund must be above zero.")
    if not completion_id.isascii() or not completion_id.isprintable() or len(completion_id) > ID_CHARS_MAX:
        raise ControlError(NOT_CHARGED)
    command = make_command(by, "credit.refund", (completion_id,), f"refund:{completion_id}")

    def refund(tx: Transaction) -> Refund:
        charged = _find(tx, completion_id)
        amount_nano = charged.cost_nano if part_nano is None else part_nano
        done = Refund(completion_id, charged.email, amount_nano, charged.cost_nano)
        credit.lock_money(tx, charged.account_id)  # so that of two refunds at once the second finds the first
        earlier = credit.amount_of_source(tx, charged.source)
        claim = command.claim(tx, now_ms)
        if earlier and (claim.is_new or claim.earlier):
            raise ControlError(
                f"The request {completion_id} was refunded before: {format_dollars(earlier[0])} of "
                f"{format_dollars(charged.cost_nano)} dollars. A request is refunded once."
            )
        if earlier:
            return done
        if not 0 < amount_nano <= charged.cost_nano:
            raise ControlError(
                f"{format_dollars(amount_nano)} dollars are more than the request {completion_id} cost: "
                f"{format_dollars(charged.cost_nano)}."
            )
        if credit.give(tx, charged.refund(amount_nano, reason, now_ms)) is None:
            raise ControlError(
                f"With this refund the balance of {charged.email} would reach its limit of "
                f"{format_dollars(BALANCE_NANO_LIMIT)} dollars."
            )
        detail = f"{format_dollars(amount_nano)} of {format_dollars(charged.cost_nano)} dollars: {reason}"
        audit_events.add(tx, AuditEvent(now_ms, by, "credit.refund", charged.account_id, completion_id, detail))
        return done

    return await command.run(lambda: make_change(store, refund))


def _find(tx: Transaction, completion_id: str) -> ChargedRequest:
    charged = refunds.find(tx, completion_id)
    if charged is None:
        raise ControlError(NOT_CHARGED)
    if charged.is_erased:
        raise ControlError(f"The account of the request {completion_id} was erased: nobody could use the refund.")
    if charged.cost_nano == 0:
        raise ControlError(f"The request {completion_id} cost nothing.")
    return charged
