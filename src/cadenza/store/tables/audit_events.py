"""The audit log: who did what to whom, and when. It is append-only, and has no content and no secrets."""

from collections.abc import Iterable

import msgspec
from sqlalchemy import bindparam, insert, select

from cadenza.store.schema import accounts, audit_events
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction


class AuditEvent(msgspec.Struct, frozen=True):
    """`actor` is the address of an account, or `command line`; `event` is a noun and a verb, like key.revoke.

    The actor of an event that is written may also be what `by_token` returns.
    """

    at: int
    actor: str
    event: str
    account_id: str | None = None  # whom it concerns
    subject: str = ""  # the id of what it was done to
    detail: str = ""
    id: int = 0  # once it is written
    token: str | None = None  # the first characters of the access token that was used, when it is read
    email: str | None = None  # of the account, when it is read


_WRITTEN = ("at", "actor", "event", "account_id", "subject", "detail")
_BY_TOKEN = " by token "  # noqa: S105 no address and no other actor has it
INSERT = Statement(insert(audit_events), *_WRITTEN, "token")
_NEWEST_FIRST = (
    select(*(audit_events.c[name] for name in (*_WRITTEN, "id", "token")), accounts.c.email)
    .outerjoin_from(audit_events, accounts, accounts.c.id == audit_events.c.account_id)
    .where(audit_events.c.id < bindparam("before"))
    .order_by(audit_events.c.id.desc())
    .limit(bindparam("count"))
)
LIST = Statement(_NEWEST_FIRST)
LIST_OF_ACCOUNT = Statement(_NEWEST_FIRST.where(audit_events.c.account_id == bindparam("account")))
LIST_OF_SERVICE = Statement(
    _NEWEST_FIRST.where(audit_events.c.account_id.is_(None), audit_events.c.event == bindparam("named"))
)
LIST_OF_SUBJECT = Statement(
    _NEWEST_FIRST.where(audit_events.c.account_id.is_(None), audit_events.c.subject == bindparam("subject"))
)
WITH_EVENT = Statement(
    select(audit_events.c.account_id)
    .where(audit_events.c.event == bindparam("named"), audit_events.c.account_id.is_not(None))
    .distinct()
)
NEWEST = 2**62


def by_token(address: str, prefix: str) -> str:
    """The actor of an event that an account caused with an access token. It is stored in two columns."""
    return address + _BY_TOKEN + prefix


def token_of(actor: str) -> str | None:
    """The first characters of the access token that this actor used."""
    return actor.partition(_BY_TOKEN)[2] or None


def add(tx: Transaction, event: AuditEvent) -> None:
    columns = {"actor": event.actor.partition(_BY_TOKEN)[0], "token": token_of(event.actor)}
    tx.change(INSERT, msgspec.structs.asdict(event) | columns)


async def list_newest(
    store: Store, account_id: str | None = None, before: int = NEWEST, count: int = 50
) -> list[AuditEvent]:
    """The newest events, of one account or of all, newest first; `before` is the id of the last one that was seen."""
    values = {"before": before, "count": count}
    if account_id is None:
        rows = await store.rows(LIST, values)
    else:
        rows = await store.rows(LIST_OF_ACCOUNT, {**values, "account": account_id})
    return [AuditEvent(*row) for row in rows]


async def accounts_with(store: Store, events: Iterable[str]) -> set[str]:
    """The ids of the accounts to which any of these events happened."""
    return {row[0] for event in events for row in await store.report(WITH_EVENT, {"named": event})}


async def list_of_service(store: Store, event: str, count: int) -> list[AuditEvent]:
    """The newest events of this name that concern no account, newest first."""
    rows = await store.report(LIST_OF_SERVICE, {"before": NEWEST, "count": count, "named": event})
    return [AuditEvent(*row) for row in rows]


async def list_of_subject(store: Store, subject: str, count: int) -> list[AuditEvent]:
    """The newest events that concern no account but this subject, like a class, newest first."""
    rows = await store.rows(LIST_OF_SUBJECT, {"before": NEWEST, "count": count, "subject": subject})
    return [AuditEvent(*row) for row in rows]


def newest_of_subject(tx: Transaction, subject: str) -> AuditEvent | None:
    row = tx.row(LIST_OF_SUBJECT, {"before": NEWEST, "count": 1, "subject": subject})
    return AuditEvent(*row) if row else None
