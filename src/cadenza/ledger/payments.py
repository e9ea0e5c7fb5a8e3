"""Payments by card and by bank transfer, and the provider's events: each is handled once.

Events of refunds and disputes are kept with what they say, by the provider's id of the payment, so that those that come
before the payment is paid, or even known, take effect then.
"""

from typing import Literal

import msgspec
from sqlalchemy import bindparam, func, insert, or_, select, text, update

from cadenza.store.schema import payments
from cadenza.store.statements import Statement
from cadenza.store.store import Row, Store, Transaction

PaymentState = Literal["open", "paid", "returned", "disputed", "expired"]
SHOWN = 20


class Payment(msgspec.Struct, frozen=True):
    """A payment. `checkout` and `reference` are the provider's ids of the checkout and of the payment itself.

    That of a bank transfer has our id and the transfer's reference in their place.

    `refunded_nano` is what the provider refunded, `lost_nano` what lost disputes were about, and `disputed_nano` what
    open disputes are about.
    """

    id: str
    account_id: str
    provider: str
    checkout: str
    amount_nano: int
    created_at: int
    changed_at: int
    reference: str | None = None
    refunded_nano: int = 0
    lost_nano: int = 0
    disputed_nano: int = 0
    state: PaymentState = "open"

    @property
    def returned_nano(self) -> int:
        """What refunds and lost disputes took of the credit."""
        return min(self.amount_nano, self.refunded_nano + self.lost_nano)

    @property
    def taken_nano(self) -> int:
        """What is taken of the credit now, for open disputes too. It is never more than was paid."""
        return min(self.amount_nano, self.refunded_nano + self.lost_nano + self.disputed_nano)


class PaymentIds(msgspec.Struct, frozen=True):
    """What identifies a payment: our id, or the provider's of the checkout or the payment. Empty ids match nothing."""

    payment_id: str = ""
    checkout: str = ""
    reference: str = ""


class NotedEvent(msgspec.Struct, frozen=True):
    """An event of the provider. One of a refund or a dispute is kept with what it says, as JSON."""

    id: str
    kind: str
    fact: str | None = None
    happened_at: int = 0  # by the provider's clock


class ProviderPayment(msgspec.Struct, frozen=True):
    """A payment as the provider lists it. Amounts are None if they are not in dollars."""

    id: str
    payment_id: str  # ours; empty for a payment of another program
    amount_nano: int | None
    refunded_nano: int | None
    created_at: int


COLUMNS = [payments.c[name] for name in Payment.__struct_fields__]
INSERT = Statement(insert(payments), *Payment.__struct_fields__)
_HAS_ID = (
    payments.c.provider == bindparam("of"),
    or_(
        payments.c.id == bindparam("payment"),
        payments.c.checkout == bindparam("session"),
        payments.c.reference == bindparam("intent"),
    ),
)
READ = Statement(select(*COLUMNS).where(*_HAS_ID))
# An update that changes nothing locks the row on both databases until the transaction ends.
LOCK = Statement(update(payments).where(*_HAS_ID).values(changed_at=payments.c.changed_at).returning(*COLUMNS))
CHANGE = Statement(
    update(payments)
    .where(payments.c.id == bindparam("payment"))
    .values(
        state=bindparam("now_is"),
        reference=func.coalesce(bindparam("intent"), payments.c.reference),
        returned_nano=bindparam("returned"),
        refunded_nano=bindparam("refunded"),
        lost_nano=bindparam("lost"),
        disputed_nano=bindparam("disputed"),
        changed_at=bindparam("now"),
    )
)
_OF_ACCOUNT = payments.c.account_id == bindparam("account")
LIST = Statement(select(*COLUMNS).where(_OF_ACCOUNT).order_by(payments.c.created_at.desc(), payments.c.id).limit(SHOWN))
COUNT_OPEN = Statement(
    select(func.count()).where(_OF_ACCOUNT, payments.c.state == "open", payments.c.created_at > bindparam("since"))
)
ADD_EVENT = Statement(
    text(
        "INSERT INTO payment_events (id, kind, at, reference, fact, happened_at)"
        " VALUES (:id, :kind, :now, :reference, :fact, :happened_at) ON CONFLICT (id) DO NOTHING"
    )
)
FIND_EVENT = Statement(text("SELECT fact FROM payment_events WHERE id = :id"))
LIST_EVENTS = Statement(
    text("SELECT id, kind, fact, happened_at FROM payment_events WHERE reference = :reference ORDER BY at, id")
)
LOCK_REFERENCE = Statement(
    text(
        "INSERT INTO payment_events (id, kind, at) VALUES (:reference, 'reference', :now)"
        " ON CONFLICT (id) DO UPDATE SET at = payment_events.at"
    )
)


def add(tx: Transaction, payment: Payment) -> None:
    assert payment.state == "open"
    assert payment.taken_nano == 0 < payment.amount_nano
    tx.change(INSERT, msgspec.structs.asdict(payment))


def lock(tx: Transaction, provider: str, ids: PaymentIds) -> Payment | None:
    """Lock and return the payment with one of these ids."""
    return _only(tx.rows(LOCK, _values(provider, ids)))


async def find(store: Store, provider: str, ids: PaymentIds) -> Payment | None:
    return _only(await store.rows(READ, _values(provider, ids)))


def _values(provider: str, ids: PaymentIds) -> dict[str, str]:
    values = {"of": provider, "payment": ids.payment_id, "session": ids.checkout, "intent": ids.reference}
    return {name: value or "-" for name, value in values.items()}


def _only(rows: list[Row]) -> Payment | None:
    return Payment(*rows[0]) if len(rows) == 1 else None


def change(tx: Transaction, payment: Payment) -> None:
    """Write the state, the reference, and what refunds and disputes took."""
    values = {
        "payment": payment.id,
        "now_is": payment.state,
        "intent": payment.reference,
        "returned": payment.returned_nano,
        "refunded": payment.refunded_nano,
        "lost": payment.lost_nano,
        "disputed": payment.disputed_nano,
        "now": payment.changed_at,
    }
    assert min(payment.refunded_nano, payment.lost_nano, payment.disputed_nano) >= 0
    if tx.change(CHANGE, values) != 1:  # not `assert`: credit was moved for it
        raise AssertionError("a payment that is locked can be changed")


def lock_reference(tx: Transaction, reference: str, now_ms: int) -> None:
    """Wait for other transactions about this reference, whether or not its payment is known."""
    tx.change(LOCK_REFERENCE, {"reference": reference, "now": now_ms})


def note_event(tx: Transaction, event: NotedEvent, now_ms: int, reference: str | None = None) -> bool:
    """Note an event of the provider. False if it was noted before; a transaction with the same event is waited for."""
    return tx.change(ADD_EVENT, {**msgspec.structs.asdict(event), "now": now_ms, "reference": reference}) == 1


def has_event(tx: Transaction, event_id: str) -> bool:
    return tx.row(FIND_EVENT, {"id": event_id}) is not None


def find_fact(tx: Transaction, event_id: str) -> str | None:
    """What a noted event says, if that was kept."""
    row = tx.row(FIND_EVENT, {"id": event_id})
    return row[0] if row else None


def list_events(tx: Transaction, reference: str) -> list[NotedEvent]:
    """The events with this reference, in the order in which they came."""
    return [NotedEvent(*row) for row in tx.rows(LIST_EVENTS, {"reference": reference})]


async def list_newest(store: Store, account_id: str) -> list[Payment]:
    return [Payment(*row) for row in await store.rows(LIST, {"account": account_id})]


async def count_open(store: Store, account_id: str, since_ms: int) -> int:
    """How many payments were begun after `since_ms` and are still open."""
    [(count,)] = await store.rows(COUNT_OPEN, {"account": account_id, "since": since_ms})
    return int(count)
