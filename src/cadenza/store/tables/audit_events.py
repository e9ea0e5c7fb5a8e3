"""The audit trail: who did what to whom, and when. It is append-only, and has no content and no secrets."""

import msgspec
from sqlalchemy import bindparam, insert, select

from cadenza.store.schema import accounts, acts
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction

COMMAND_LINE = "command line"


class AuditEvent(msgspec.Struct, frozen=True):
    """One act. `actor` is the address of an account, or COMMAND_LINE; `act` is a noun and a verb, like key.revoke."""

    at: int
    actor: str
    act: str
    account_id: str | None = None  # whom it concerns
    subject: str = ""  # the id of what it was done to
    detail: str = ""


class WrittenAuditEvent(msgspec.Struct, frozen=True):
    """An act, with its place in the trail, and the address of the account that it concerns."""

    id: int
    at: int
    actor: str
    act: str
    account_id: str | None
    subject: str
    detail: str
    email: str | None


INSERT = Statement(insert(acts), *AuditEvent.__struct_fields__)
_NEWEST_FIRST = (
    select(*(acts.c[name] for name in WrittenAuditEvent.__struct_fields__[:-1]), accounts.c.email)
    .outerjoin_from(acts, accounts, accounts.c.id == acts.c.account_id)
    .where(acts.c.id < bindparam("before"))
    .order_by(acts.c.id.desc())
    .limit(bindparam("count"))
)
LIST = Statement(_NEWEST_FIRST)
LIST_OF_ACCOUNT = Statement(_NEWEST_FIRST.where(acts.c.account_id == bindparam("account")))
LIST_OF_SERVICE = Statement(_NEWEST_FIRST.where(acts.c.account_id.is_(None), acts.c.act == bindparam("act")))
NEWEST = 2**62


def add(tx: Transaction, act: AuditEvent) -> None:
    tx.change(INSERT, msgspec.structs.asdict(act))


async def list_newest(
    store: Store, account_id: str | None = None, before: int = NEWEST, count: int = 50
) -> list[WrittenAuditEvent]:
    """The newest acts, of one account or of all, newest first; `before` is the id of the last one that was seen."""
    values = {"before": before, "count": count}
    if account_id is None:
        rows = await store.rows(LIST, values)
    else:
        rows = await store.rows(LIST_OF_ACCOUNT, {**values, "account": account_id})
    return [WrittenAuditEvent(*row) for row in rows]


async def list_of_service(store: Store, act: str, count: int) -> list[WrittenAuditEvent]:
    """The newest acts of this name that concern no account, newest first."""
    rows = await store.rows(LIST_OF_SERVICE, {"before": NEWEST, "count": count, "act": act})
    return [WrittenAuditEvent(*row) for row in rows]
