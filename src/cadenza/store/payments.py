"""Payments by card, and the events of their provider that were acted on: each is acted on once."""

from typing import Literal

import msgspec
from sqlalchemy import bindparam, func, insert, or_, select, text, update

from cadenza.store.schema import payments
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction

State = Literal["open", "paid", "returned", "disputed", "expired"]
SHOWN = 20


class Payment(msgspec.Struct, frozen=True):
    """A payment. `checkout` and `reference` are the provider's ids of the checkout and of the payment itself."""

    id: str
    account_id: str
    provider: str
    checkout: str
    reference: str | None
    amount_nano: int
    returned_nano: int
    state: State
    created_at: int
    changed_at: int


COLUMNS = [payments.c[name] for name in Payment.__struct_fields__]
INSERT = Statement(insert(payments), *Payment.__struct_fields__)
# An update that changes nothing locks the row on both databases until the transaction ends.
FIND = Statement(
    update(payments)
    .where(
        payments.c.provider == bindparam("of"),
        or_(
            payments.c.id == bindparam("payment"),
            payments.c.checkout == bindparam("session"),
            payments.c.reference == bindparam("intent"),
        ),
    )
    .values(changed_at=payments.c.changed_at)
    .returning(*COLUMNS)
)
CHANGE = Statement(
    update(payments)
    .where(payments.c.id == bindparam("payment"))
    .values(
        state=bindparam("now_is"),
        reference=func.coalesce(bindparam("intent"), payments.c.reference),
        returned_nano=bindparam("returned"),
        changed_at=bindparam("now"),
    )
)
_OF_ACCOUNT = payments.c.account_id == bindparam("account")
LIST = Statement(select(*COLUMNS).where(_OF_ACCOUNT).order_by(payments.c.created_at.desc(), payments.c.id).limit(SHOWN))
COUNT_OPEN = Statement(
    select(func.count()).where(_OF_ACCOUNT, payments.c.state == "open", payments.c.created_at > bindparam("since"))
)
ADD_EVENT = Statement(
    text("INSERT INTO payment_events (id, kind, at) VALUES (:event, :kind, :now) ON CONFLICT (id) DO NOTHING")
)


def add(tx: Transaction, payment: Payment) -> None:
    tx.change(INSERT, msgspec.structs.asdict(payment))


def find(tx: Transaction, provider: str, payment_id: str, checkout: str, reference: str) -> Payment | None:
    """Lock and return the payment that one of these names; an empty one names nothing."""
    values = {"of": provider, "payment": payment_id, "session": checkout, "intent": reference}
    found = tx.rows(FIND, {name: value or "-" for name, value in values.items()})
    return Payment(*found[0]) if len(found) == 1 else None


def change(tx: Transaction, payment: Payment) -> None:
    """Write the state, the reference and what was returned."""
    values = {
        "payment": payment.id,
        "now_is": payment.state,
        "intent": payment.reference,
        "returned": payment.returned_nano,
        "now": payment.changed_at,
    }
    tx.change(CHANGE, values)


def note_event(tx: Transaction, event_id: str, kind: str, now_ms: int) -> bool:
    """Whether this event is new. A second transaction with the same event waits for the first."""
    return tx.change(ADD_EVENT, {"event": event_id, "kind": kind, "now": now_ms}) == 1


async def list_newest(store: Store, account_id: str) -> list[Payment]:
    return [Payment(*row) for row in await store.rows(LIST, {"account": account_id})]


async def count_open(store: Store, account_id: str, since_ms: int) -> int:
    """How many payments were begun since then and have not ended."""
    [(count,)] = await store.rows(COUNT_OPEN, {"account": account_id, "since": since_ms})
    return int(count)
