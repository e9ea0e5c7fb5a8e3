"""Activity: each request of the account, with filters, page by page, and as a streamed CSV or JSON file."""

from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from cadenza.core.activity import ActivityFilter, ActivityPage, ActivityRow, read_filter, read_place
from cadenza.core.rates import Rate
from cadenza.core.records import CLASSES, SEARCH
from cadenza.parts.site.dates import ChosenSpan, named_span, read_span
from cadenza.parts.site.errors import BadForm
from cadenza.parts.site.files import stream_rows
from cadenza.parts.site.routes import Routes, endpoint, get
from cadenza.parts.site.visit import Visit
from cadenza.store.tables import keys
from cadenza.store.tables.activity import read_all, read_page

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
    499: "stopped by you",
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
    page = await _read_page(visit, asked)
    known = await keys.list_page(visit.store, visit.account.id, visit.now_ms, count=KEYS_MAX)
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
    return msgspec.convert((await _read_page(visit, _asked(visit))).shown(), ActivityList)


async def export(visit: Visit) -> Response:
    """A file in the format that the path ends with."""
    asked, form = _asked(visit), visit.path.rpartition(".")[2]
    await visit.limit("export", EXPORTS, "You have exported several times. Try again in a minute.")
    name = f"cadenza-activity-{asked.chosen.first_day}-to-{asked.chosen.last_day}"
    rows = read_all(visit.store, visit.account.id, asked.wanted)
    return await stream_rows(name, form, FIELDS, rows, ActivityRow.shown, visit.context.export_pace)


def _asked(visit: Visit) -> Asked:
    chosen = read_span(visit) or named_span("30", visit.now_ms)
    query = visit.query_fields
    filters = {name: query[name] for name in FILTERS if query.get(name)}
    try:
        return Asked(chosen, read_filter(chosen.span, filters), filters)
    except ValueError as error:
        raise BadForm(str(error)) from None


async def _read_page(visit: Visit, asked: Asked) -> ActivityPage:
    await visit.limit("activity", PAGES, "Too many pages at once. Try again in a moment.")
    try:
        place = read_place(visit.query_fields.get("cursor"))
    except ValueError as error:
        raise BadForm(str(error)) from None
    return await read_page(visit.store, visit.account.id, asked.wanted, PAGE, place)


ROUTES: Routes = (
    get("/usage/activity", activity_page),
    get("/usage/activity.csv", export),
    get("/usage/activity.json", export),
    endpoint("GET", "/activity", "Each request of the account, newest first", get_activity, "usage:read"),
)
