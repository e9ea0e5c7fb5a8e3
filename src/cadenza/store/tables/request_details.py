"""Details of requests that were not plain, and the newest requests of all accounts, for operators.

A request that was charged is found by its entry, any other one by its details. Both are numbered as they are written,
so a reader can go on from where it was.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Select, Table, and_, bindparam, delete, func, insert, literal_column, or_, select

from cadenza.core.public import Public
from cadenza.core.records import SEARCH, Outcome, RequestStep
from cadenza.observe.details import EndedRequest
from cadenza.store.rows import Rows
from cadenza.store.schema import accounts, entries, keys, marks, request_details, usage
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction
from cadenza.store.tables.metered import first_id

KEPT_MS = 3 * 24 * 60 * 60 * 1000
ROWS_MAX = 50_000
MS_PER_S = 1000
REMOVED_MAX = 200  # in a transaction
SEARCHES_MS = 5 * 60 * MS_PER_S  # a search begins at most this long before the hold of its request
STEPS = msgspec.json.Decoder(list[RequestStep])
COLUMNS = tuple(name for name in request_details.c.keys() if name != "id")  # noqa: SIM118 a collection of columns
ADD = Statement(insert(request_details), *COLUMNS)
_newest = select(func.max(request_details.c.id)).scalar_subquery()
_old = (  # the newest row stays, because SQLite would give its number away again
    select(request_details.c.id)
    .where(
        request_details.c.id < _newest,
        or_(request_details.c.ended_at < bindparam("before"), request_details.c.id <= _newest - ROWS_MAX),
    )
    .limit(REMOVED_MAX)
)
REMOVE_OLD = Statement(delete(request_details).where(request_details.c.id.in_(_old)))


class StoredDetails(msgspec.Struct, frozen=True):
    """A row."""

    request_id: str
    completion_id: str | None
    account_id: str
    key_id: str
    endpoint: str
    class_id: str
    version: int | None
    provider: str
    model: str
    status: int
    cause: str
    fault: str
    is_charged: bool
    ended_at: int
    duration_ms: int
    first_byte_ms: int | None
    held_ms: int | None
    answered_ms: int | None
    settle_ms: int | None
    steps: list[RequestStep]


class RecentRequest(Public, msgspec.Struct, frozen=True):
    """A request that has ended. `cause` and `fault` say why, if it was not served; `cost` is what it was charged."""

    request_id: str
    completion_id: str | None
    ended_at: int
    account_id: str
    email: str
    key_id: str
    key_name: str
    key_prefix: str
    class_id: str
    provider: str
    model: str
    status: int
    cause: str
    fault: str
    prompt_tokens: int
    completion_tokens: int
    cost_nano: int
    first_byte_ms: int | None
    duration_ms: int


class NumberedRequest(RecentRequest, frozen=True):
    """One of the newest. The number grows in the order in which requests are written."""

    number: int


class MeteredRequest(msgspec.Struct, frozen=True):
    """The metering row of a request, and its entry and its refund."""

    completion_id: str
    request_id: str
    account_id: str
    key_id: str
    class_id: str
    version: int | None
    provider: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_nano: int
    is_estimated: bool
    status: int
    is_stream: bool
    started_at: int
    first_byte_ms: int | None
    duration_ms: int
    input_price_nano: int
    output_price_nano: int
    cached_input_price_nano: int | None
    held_nano: int | None  # None: a sweep ended it
    short_nano: int
    source: str
    provider_cost_nano: int | None
    entry_nano: int | None  # None: it has no entry


class RunningRequest(msgspec.Struct, frozen=True):
    """A stream that has a mark: it runs, or its process died and was not swept yet."""

    request_id: str
    process: str
    class_id: str
    started_at: int
    delivered_tokens: int


DETAILS = Rows(StoredDetails, request_details, {"steps": STEPS.decode})
_stored = select(*DETAILS.columns).order_by(request_details.c.id.desc()).limit(10)
BY_COMPLETION = Statement(_stored.where(request_details.c.completion_id == bindparam("text")))
BY_REQUEST = Statement(_stored.where(request_details.c.request_id == bindparam("text")))
METERED_ROWS = Rows(
    MeteredRequest,
    usage,
    is_estimated=usage.c.estimated,
    is_stream=usage.c.stream,
    input_price_nano=usage.c.input_nano,
    output_price_nano=usage.c.output_nano,
    cached_input_price_nano=usage.c.cached_input_nano,
    entry_nano=entries.c.amount_nano,
)
_IS_CHARGE = and_(entries.c.completion_id == usage.c.completion_id, entries.c.kind == literal_column("'charge'"))
_metered = select(*METERED_ROWS.columns).select_from(usage).outerjoin(entries, _IS_CHARGE)
METERED = Statement(_metered.where(usage.c.completion_id == bindparam("completion")))
METERED_TOGETHER = Statement(  # the web searches of one request, which began in this span of time
    _metered.where(
        usage.c.account_id == bindparam("account"),
        usage.c.started_at >= bindparam("start"),
        usage.c.started_at <= bindparam("end"),
        usage.c.request_id == bindparam("request"),
        usage.c.class_id == literal_column(f"'{SEARCH}'"),
    )
)
RUNNING = Statement(
    select(*(marks.c[name] for name in RunningRequest.__struct_fields__)).where(
        or_(marks.c.completion_id == bindparam("text"), marks.c.request_id == bindparam("text"))
    )
)

NO_TEXT: ColumnElement[str] = literal_column("''")
NOTHING: ColumnElement[int] = literal_column("0")


def _recent(kind: type[RecentRequest], table: Table, **own: ColumnElement[Any]) -> Select[Any]:
    """The fields of such a record, from this table where `own` does not say otherwise."""
    of_key = {"email": accounts.c.email, "key_name": keys.c.name, "key_prefix": keys.c.prefix}
    return (
        select(*Rows(kind, table, **of_key, **own).columns)
        .join_from(table, accounts, accounts.c.id == table.c.account_id)
        .join(keys, keys.c.id == table.c.key_id)
    )


_of_usage = {"ended_at": usage.c.started_at + usage.c.duration_ms, "cause": NO_TEXT, "fault": NO_TEXT}
_found = _recent(RecentRequest, usage, **_of_usage)
FOUND_BY_COMPLETION = Statement(_found.where(usage.c.completion_id == bindparam("text")))
FOUND_BY_REQUEST = Statement(
    _found.where(
        usage.c.completion_id >= bindparam("first"),  # it begins with the time: a range of the primary key is read
        usage.c.started_at >= bindparam("start"),
        usage.c.request_id == bindparam("text"),
    )
    .order_by(usage.c.completion_id.desc())
    .limit(bindparam("count"))
)
_charged = (
    _recent(NumberedRequest, usage, number=entries.c.id, **_of_usage)
    .join(entries, _IS_CHARGE)
    .where(usage.c.class_id != literal_column(f"'{SEARCH}'"))
)
_no_cost = dict.fromkeys(("prompt_tokens", "completion_tokens", "cost_nano"), NOTHING)
_uncharged = _recent(NumberedRequest, request_details, number=request_details.c.id, **_no_cost).where(
    request_details.c.is_charged.is_(False)
)


class NumberedRequests:
    """Requests of one kind, in the order of their numbers."""

    def __init__(self, query: Select[Any], number: ColumnElement[int]) -> None:
        later = query.where(number > bindparam("after"))
        self._later = Statement(later.order_by(number).limit(bindparam("count")))
        self._newest = Statement(query.order_by(number.desc()).limit(bindparam("count")))
        self._last = Statement(select(func.coalesce(func.max(number), NOTHING)))

    async def newest(self, store: Store, count: int) -> list[NumberedRequest]:
        """Newest first."""
        return [NumberedRequest(*row) for row in await store.rows(self._newest, {"count": count})]

    async def later(self, store: Store, after: int, count: int) -> list[NumberedRequest]:
        """Those after a number, oldest first."""
        return [NumberedRequest(*row) for row in await store.rows(self._later, {"after": after, "count": count})]

    async def last(self, store: Store) -> int:
        [row] = await store.rows(self._last, {})
        return int(row[0])


CHARGED = NumberedRequests(_charged, entries.c.id)
UNCHARGED = NumberedRequests(_uncharged, request_details.c.id)


async def add(store: Store, ended: Sequence[EndedRequest]) -> None:
    rows = [_row(one) for one in ended]
    if rows:
        await store.transact(lambda tx: tx.change_each(ADD, rows), is_brief=True)


def remove_old(tx: Transaction, now_ms: int) -> int:
    """Remove some of those that are too old, or too many. Return how many: call it until it is 0."""
    return tx.change(REMOVE_OLD, {"before": now_ms - KEPT_MS})


async def find_metered(store: Store, completion_id: str) -> MeteredRequest | None:
    row = await store.row(METERED, {"completion": completion_id})
    return METERED_ROWS.read(row) if row else None


async def find_recent(store: Store, text: str, start_ms: int, count: int) -> list[RecentRequest]:
    """The metered request with this completion id, or those since a time with this request id, newest first."""
    rows = await store.rows(FOUND_BY_COMPLETION, {"text": text})
    if not rows and not text.startswith("chatcmpl-"):
        values = {"text": text, "first": first_id(start_ms), "start": start_ms, "count": count}
        rows = await store.report(FOUND_BY_REQUEST, values)
    return [RecentRequest(*row) for row in rows]


async def find_searches(store: Store, of: MeteredRequest) -> list[MeteredRequest]:
    """The web searches that were charged for a request: they have metering rows of their own."""
    start_ms, end_ms = of.started_at - SEARCHES_MS, of.started_at + of.duration_ms
    values = {"account": of.account_id, "start": start_ms, "end": end_ms, "request": of.request_id}
    return [METERED_ROWS.read(row) for row in await store.report(METERED_TOGETHER, values)]


async def find_running(store: Store, text: str) -> RunningRequest | None:
    """A stream with this completion id or request id."""
    row = await store.row(RUNNING, {"text": text})
    return RunningRequest(*row) if row else None


async def find(store: Store, text: str) -> list[StoredDetails]:
    """The details of requests with this completion id or request id, newest first."""
    statement = BY_COMPLETION if text.startswith("chatcmpl-") else BY_REQUEST
    return [DETAILS.read(row) for row in await store.rows(statement, {"text": text})]


def _row(ended: EndedRequest) -> dict[str, Any]:
    outcome = ended.outcome
    names = set(COLUMNS) & set(Outcome.__struct_fields__)
    return {
        **{name: getattr(outcome, name) for name in names},
        "completion_id": outcome.completion_id or None,
        "is_charged": outcome.usage is not None,
        "held_ms": _ms(outcome.held_s),
        "answered_ms": _ms(outcome.answered_s),
        "settle_ms": ended.settle_ms,
        "steps": msgspec.json.encode(outcome.steps).decode(),
    }


def _ms(time_s: float | None) -> int | None:
    return None if time_s is None else round(time_s * MS_PER_S)
