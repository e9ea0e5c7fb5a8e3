"""Activity: each request of the account, with filters, page by page, and as a streamed CSV or JSON file."""

import csv
import io
from collections.abc import AsyncIterator
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response, StreamingResponse

from cadenza.core.activity import ActivityFilter, ActivityPlace, ActivityRow, read_filter, read_place
from cadenza.core.formats import escape_formula
from cadenza.core.rates import Rate
from cadenza.core.records import CLASSES, SEARCH
from cadenza.store.tables import keys
from cadenza.store.tables.activity import read_all, read_page
from cadenza.web.dates import ChosenSpan, named_span, read_span
from cadenza.web.errors import BadForm
from cadenza.web.routes import JSON, Routes, endpoint, get
from cadenza.web.visit import Visit

PAGES = Rate(2.0, 30)  # for each account
EXPORTS = Rate(1 / 30, 6)
PAGE = 50
KEYS_MAX = 100  # that the form offers
FILTERS = ("key", "model", "status")
STATUSES = {"": "All", "200": "Complete", "failed": "Not complete"}
OUTCOMES = {
    200: "complete",
    400: "refused by the model",
    401: "key revoked",
    429: "no capacity",
    499: "you disconnected",
    502: "the model failed",
    503: "interrupted",
}


class RequestView(msgspec.Struct, frozen=True):
    """One request. `created` is in Unix seconds, `cost` in dollars; `key` is the id of the key, or `Web chat`."""

    id: str
    request_id: str
    created: int
    created_at: str
    key: str
    model: str
    stream: bool
    status: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    estimated: bool
    first_byte_ms: int | None
    duration_ms: int
    cost: str


class ActivityList(msgspec.Struct, frozen=True):
    """Requests, newest first. `next` is the cursor of the next page, or null."""

    data: list[RequestView]
    next: str | None
    object: str = "list"


FIELDS = RequestView.__struct_fields__


class Asked(msgspec.Struct, frozen=True):
    """The span and the filter of a page, and the query of a link to it."""

    chosen: ChosenSpan
    wanted: ActivityFilter
    filters: dict[str, str]

    @property
    def query(self) -> str:
        return "&".join(filter(None, (self.chosen.query, urlencode(self.filters))))


async def activity_page(visit: Visit) -> Response:
    asked = _asked(visit)
    await visit.limit("activity", PAGES, "Too many pages at once. Try again in a moment.")
    page = await read_page(visit.store, visit.account.id, asked.wanted, PAGE, _place(visit))
    known = await keys.list_page(visit.store, visit.account.id, "", KEYS_MAX, None)
    return visit.page(
        "activity.html",
        page=page,
        asked=asked,
        keys={one.id: f"{one.name or 'Unnamed'} ({one.prefix})" for one in known} | {keys.WEB_NAME: keys.WEB_NAME},
        classes=(*CLASSES, SEARCH),
        statuses=STATUSES,
        outcomes=OUTCOMES,
    )


async def get_activity(visit: Visit) -> ActivityList:
    asked = _asked(visit)
    await visit.limit("activity", PAGES, "Too many pages at once. Try again in a moment.")
    page = await read_page(visit.store, visit.account.id, asked.wanted, PAGE, _place(visit))
    return msgspec.convert(page.shown(), ActivityList)


async def export(visit: Visit) -> Response:
    """A file in the format that the path ends with."""
    asked, form = _asked(visit), visit.request.url.path.rpartition(".")[2]
    await visit.limit("export", EXPORTS, "You have exported several times. Try again in a minute.")
    pages = read_all(visit.store, visit.account.id, asked.wanted)
    name = f"cadenza-activity-{asked.chosen.first_day}-to-{asked.chosen.last_day}.{form}"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    if form == "csv":
        return StreamingResponse(_csv(pages), headers=headers, media_type="text/csv; charset=utf-8")
    return StreamingResponse(_json(pages), headers=headers, media_type=JSON)


def _asked(visit: Visit) -> Asked:
    chosen = read_span(visit) or named_span("30", visit.now_ms)
    query = visit.request.query_params
    filters = {name: query[name] for name in FILTERS if query.get(name)}
    try:
        return Asked(chosen, read_filter(chosen.span, filters), filters)
    except ValueError as error:
        raise BadForm(str(error)) from None


def _place(visit: Visit) -> ActivityPlace | None:
    try:
        return read_place(visit.request.query_params.get("cursor"))
    except ValueError as error:
        raise BadForm(str(error)) from None


async def _csv(pages: AsyncIterator[list[ActivityRow]]) -> AsyncIterator[bytes]:
    buffer = io.StringIO()
    table = csv.writer(buffer)
    table.writerow(FIELDS)
    async for rows in pages:
        table.writerows([[escape_formula(cell) for cell in row.shown().values()] for row in rows])
        yield buffer.getvalue().encode()
        buffer.seek(0)
        buffer.truncate()


async def _json(pages: AsyncIterator[list[ActivityRow]]) -> AsyncIterator[bytes]:
    before = b'{"object":"list","data":['
    async for rows in pages:
        if rows:
            yield before + b",".join([msgspec.json.encode(row.shown()) for row in rows])
            before = b","
    yield (b"" if before == b"," else before) + b"]}"


ROUTES: Routes = (
    get("/usage/activity", activity_page),
    get("/usage/activity.csv", export),
    get("/usage/activity.json", export),
    endpoint("GET", "/activity", "Each request of the account, newest first", get_activity, scope="usage:read"),
)
