"""Requests that were metered, by one of their ids."""

import msgspec
from sqlalchemy import bindparam, select

from cadenza.store.rows import Rows
from cadenza.store.schema import accounts, usage
from cadenza.store.statements import Statement
from cadenza.store.store import Store


class FoundRequest(msgspec.Struct, frozen=True):
    """A metering row that was searched for."""

    completion_id: str
    request_id: str
    account_id: str
    email: str
    class_id: str
    provider: str
    status: int
    started_at: int
    cost_nano: int


FOUND = Rows(FoundRequest, usage, email=accounts.c.email)
_FOUND = select(*FOUND.columns).join_from(usage, accounts)
BY_COMPLETION = Statement(_FOUND.where(usage.c.completion_id == bindparam("text")))
BY_ID = Statement(
    _FOUND.where(
        usage.c.completion_id >= bindparam("first"),  # it begins with the time: a range of the primary key is read
        usage.c.started_at >= bindparam("start"),
        usage.c.request_id == bindparam("text"),
    )
    .order_by(usage.c.completion_id.desc())
    .limit(bindparam("count"))
)


async def find_requests(store: Store, text: str, first_id: str, start_ms: int, count: int) -> list[FoundRequest]:
    """The request with this completion id, or those since a time with this request id, newest first."""
    values = {"text": text, "first": first_id, "start": start_ms, "count": count}
    rows = await store.rows(BY_COMPLETION, {"text": text})
    if not rows and not text.startswith("chatcmpl-"):
        rows = await store.report(BY_ID, values)
    return [FOUND.read(row) for row in rows]
