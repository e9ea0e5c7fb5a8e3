"""The audit log: who did what to whom, and when. It is append-only, and has no content and no secrets."""

from collections.abc import Iterable

import msgspec
from sqlalchemy import bindparam, insert, select

from cadenza.core.public import Public
from cadenza.core.records import Actor
from cadenza.store.rows import Rows
from cadenza.store.schema import accounts, audit_events
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction


class AuditEvent(msgspec.Struct, frozen=True):
    """What somebody does. `event` is a noun and a verb, like key.revoke."""

    at: int
    by: Actor
    event: str
    account_id: str | None = None  # whom it concerns
    subject: str = ""  # the id of what it was done to
    detail: str = ""


class LoggedEvent(Public, msgspec.Struct, frozen=True):
    """An event of the audit log: who did what to whom, and when. `event` is a noun and a verb, like key.revoke."""

    id: int
    at: int
    actor: str
    token: str | None  # the first characters of the access token that the actor used
    event: str
    account_id: str | None
    email: str | None  # of this account
    subject: str
    detail: str


ROWS = Rows(LoggedEvent, audit_events, email=accounts.c.email)
_WRITTEN = [name for name in LoggedEvent.__struct_fields__ if name not in {"id", "email"}]
INSERT = Statement(insert(audit_events), *_WRITTEN)
_NEWEST_FIRST = (
    select(*ROWS.columns)
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


def add(tx: Transaction, event: AuditEvent) -> None:
    tx.change(INSERT, msgspec.structs.asdict(event) | {"actor": event.by.name, "token": event.by.token})


async def list_newest(
    store: Store, account_id: str | None = None, before: int = NEWEST, count: int = 50
) -> list[LoggedEvent]:
    """The newest events, of one account or of all, newest first; `before` is the id of the last one that was seen."""
    statement = LIST if account_id is None else LIST_OF_ACCOUNT
    rows = await store.rows(statement, {"before": before, "count": count, "account": account_id})
    return [ROWS.read(row) for row in rows]


async def accounts_with(store: Store, events: Iterable[str]) -> set[str]:
    """The ids of the accounts to which any of these events happened."""
    return {row[0] for event in events for row in await store.report(WITH_EVENT, {"named": event})}


async def list_of_service(store: Store, event: str, count: int) -> list[LoggedEvent]:
    """The newest events of this name that concern no account, newest first."""
    rows = await store.report(LIST_OF_SERVICE, {"before": NEWEST, "count": count, "named": event})
    return [ROWS.read(row) for row in rows]


async def list_of_subject(store: Store, subject: str, count: int) -> list[LoggedEvent]:
    """The newest events that concern no account but this subject, like a class, newest first."""
    rows = await store.rows(LIST_OF_SUBJECT, {"before": NEWEST, "count": count, "subject": subject})
    return [ROWS.read(row) for row in rows]


def newest_of_subject(tx: Transaction, subject: str) -> LoggedEvent | None:
    row = tx.row(LIST_OF_SUBJECT, {"before": NEWEST, "count": 1, "subject": subject})
    return ROWS.read(row) if row else None
