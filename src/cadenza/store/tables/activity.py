"""Reads the requests of an account one by one, newest first, by the index of account and time.

A filter by key, class or status has no index of its own. It is applied to the next SCANNED requests only, so that a
page costs the same however many requests an account has.
"""

from collections.abc import AsyncIterator

from sqlalchemy import Integer, Text, bindparam, literal_column, or_, select
from sqlalchemy.sql.selectable import Select

from cadenza.core.activity import FAILED, ActivityFilter, ActivityPage, ActivityPlace, ActivityRow
from cadenza.store.rows import Rows
from cadenza.store.schema import keys, usage
from cadenza.store.statements import Statement
from cadenza.store.store import Store
from cadenza.store.tables.keys import IS_WEB, WEB_NAME
from cadenza.store.tables.metered import PROMPT_TOKENS

SCANNED = 10_000
EXPORT_ROWS = 100  # to decode them takes a driver less than a millisecond
ANY_STATUS, ANY_BUT_200 = 0, -1
FIELDS = ActivityRow.__struct_fields__[:-3]
LATEST = ActivityPlace(2**62, "")
_NEWEST_FIRST = (usage.c.started_at.desc(), usage.c.completion_id.desc())


def _scanned() -> Select[tuple[object, ...]]:
    columns = [
        (literal_column(PROMPT_TOKENS) if name == "prompt_tokens" else usage.c[name]).label(name) for name in FIELDS
    ]
    is_before = or_(usage.c.started_at < bindparam("at"), usage.c.completion_id < bindparam("id"))
    in_span = (usage.c.started_at >= bindparam("start"), usage.c.started_at < bindparam("end"))
    return (
        select(*columns).where(usage.c.account_id == bindparam("account"), *in_span, is_before).order_by(*_NEWEST_FIRST)
    )


_next = _scanned().limit(bindparam("scanned")).subquery("scanned")
_key, _class, _status = bindparam("key", type_=Text), bindparam("class", type_=Text), bindparam("status", type_=Integer)
_is_web = (keys.c.id == _next.c.key_id) & IS_WEB
ROWS = Rows(
    ActivityRow,
    _next,
    key_name=keys.c.name,
    key_prefix=keys.c.prefix,
    is_web=keys.c.origin == literal_column("'web'"),
)
PAGE = Statement(
    select(*ROWS.columns)
    .join_from(_next, keys, keys.c.id == _next.c.key_id)
    .where(
        or_(_key == literal_column("''"), _next.c.key_id == _key, _is_web & (_key == literal_column(f"'{WEB_NAME}'"))),
        or_(_class == literal_column("''"), _next.c.class_id == _class),
        or_(
            _status == literal_column(str(ANY_STATUS)),
            _next.c.status == _status,
            (_status == literal_column(str(ANY_BUT_200))) & (_next.c.status != literal_column("200")),
        ),
    )
    .order_by(_next.c.started_at.desc(), _next.c.completion_id.desc())
    .limit(bindparam("count"))
)
LAST_SCANNED = Statement(
    select(_next.c.started_at, _next.c.completion_id)
    .order_by(_next.c.started_at, _next.c.completion_id)
    .limit(literal_column("1"))
)


async def read_page(
    store: Store,
    account_id: str,
    wanted: ActivityFilter,
    count: int,
    before: ActivityPlace | None = None,
    scanned: int = SCANNED,
) -> ActivityPage:
    """The newest requests, or those before this place."""
    place = before or LATEST
    values: dict[str, str | int] = {
        "account": account_id,
        "start": wanted.span.start_ms,
        "end": min(wanted.span.end_ms, place.started_at + 1),  # one bound: SQLite searches the index by one only
        "at": place.started_at,
        "id": place.completion_id,
        "scanned": scanned if wanted.is_narrow else count + 1,
        "count": count + 1,
        "key": wanted.key_id,
        "class": wanted.class_id,
        "status": ANY_BUT_200 if wanted.status == FAILED else int(wanted.status or ANY_STATUS),
    }
    found = [ROWS.read(row) for row in await store.report(PAGE, values, account_id)]
    if len(found) > count:
        return ActivityPage(found[:count], found[count - 1].place)
    following = await _after_scan(store, account_id, values) if wanted.is_narrow else None
    return ActivityPage(found, following)


async def read_all(store: Store, account_id: str, wanted: ActivityFilter) -> AsyncIterator[list[ActivityRow]]:
    """Every request that is wanted, newest first. At most one page is in memory."""
    place: ActivityPlace | None = None
    while True:
        page = await read_page(store, account_id, wanted, EXPORT_ROWS, place)
        yield page.rows
        if page.next is None:
            return
        place = page.next


async def _after_scan(store: Store, account_id: str, values: dict[str, str | int]) -> ActivityPlace | None:
    """The last request that was scanned; None if that was the last one of all."""
    for started_at, completion_id in await store.report(LAST_SCANNED, values, account_id):
        place = ActivityPlace(int(started_at), completion_id)
        more = {**values, "end": place.started_at + 1, "at": place.started_at, "id": place.completion_id, "scanned": 1}
        if await store.report(LAST_SCANNED, more, account_id):
            return place
    return None
