"""The audit trail: who did what to whom, and when. It is append-only, and has no content and no secrets."""

import msgspec
from sqlalchemy import bindparam, insert, or_, select

from cadenza.store.schema import acts
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction

COMMAND_LINE = "command line"


class Act(msgspec.Struct, frozen=True):
    """One act. `actor` is the address of an account, or COMMAND_LINE; `act` is a noun and a verb, like key.revoke."""

    at: int
    actor: str
    act: str
    account_id: str | None = None  # whom it concerns
    subject: str = ""  # the id of what it was done to
    detail: str = ""


class WrittenAct(msgspec.Struct, frozen=True):
    """An act, with its place in the trail."""

    id: int
    at: int
    actor: str
    act: str
    account_id: str | None
    subject: str
    detail: str


INSERT = Statement(insert(acts), *Act.__struct_fields__)
LIST = Statement(
    select(*(acts.c[name] for name in WrittenAct.__struct_fields__))
    .where(
        acts.c.id < bindparam("before"),
        or_(bindparam("any_account"), acts.c.account_id == bindparam("account")),
    )
    .order_by(acts.c.id.desc())
    .limit(bindparam("count"))
)
NEWEST = 2**62


def add(tx: Transaction, act: Act) -> None:
    tx.change(INSERT, msgspec.structs.asdict(act))


async def list_newest(
    store: Store, account_id: str | None = None, before: int = NEWEST, count: int = 50
) -> list[WrittenAct]:
    """The newest acts, of one account or of all, newest first; `before` is the id of the last one that was seen."""
    values = {"before": before, "any_account": account_id is None, "account": account_id or "", "count": count}
    return [WrittenAct(*row) for row in await store.rows(LIST, values)]
