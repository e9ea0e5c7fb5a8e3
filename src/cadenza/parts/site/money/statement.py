"""The statement: every entry of the account, page by page, and as a streamed CSV or JSON file."""

from collections.abc import AsyncIterator

import msgspec
from starlette.responses import Response

from cadenza.control.money.statement import StatementPage, describe_entry, export_statement, read_statement, sum_entries
from cadenza.core.formats import dollars_or_none
from cadenza.core.public import to_record
from cadenza.core.rates import Rate
from cadenza.core.spans import ALWAYS
from cadenza.ledger.statement import Entry
from cadenza.parts.site.dates import RANGE_NAMES, ChosenSpan, read_span
from cadenza.parts.site.files import ROWS_AT_ONCE, stream_rows
from cadenza.parts.site.routes import Routes, endpoint, get
from cadenza.parts.site.visit import Visit

EXPORTS = Rate(1 / 30, 6)  # for each account
SPANS = Rate(2.0, 30)
RANGE_TABS = {"": "All", "month": RANGE_NAMES["month"], "last-month": RANGE_NAMES["last-month"]}
CURSOR_CHARS_MAX = 60


class EntryView(msgspec.Struct, frozen=True):
    """One entry. `balance` is the balance after it, and `granted` the part of `amount` that is granted credit.

    A charge has the ids, the class, the tokens and the prices of its request, in dollars a token, and what was refunded
    of it. Without a cached price, cached tokens cost as much as others. What was taken back after it was spent is one
    line with all of it, and before it one of the origin `debt` with what is owed, with the same id.
    """

    id: int
    created_at: str
    kind: str
    description: str
    amount: str
    balance: str
    note: str
    origin: str | None
    granted: str | None
    refunded: str | None
    completion_id: str | None
    request_id: str | None
    key_id: str | None
    model: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    input_price: str | None
    cached_input_price: str | None
    output_price: str | None
    object: str = "entry"


class EntryList(msgspec.Struct, frozen=True):
    """Entries, newest first. `next` is the cursor of the next page, or null."""

    data: list[EntryView]
    next: str | None
    object: str = "list"


FIELDS = tuple(name for name in EntryView.__struct_fields__ if name != "object")


async def statement_page(visit: Visit) -> Response:
    chosen = read_span(visit)
    return visit.page(
        "statement.html",
        statement=await _read_page(visit, chosen),
        chosen=chosen,
        ranges=RANGE_TABS,
        sums=await sum_entries(visit.store, visit.owner, chosen.span) if chosen else None,
    )


async def get_statement(visit: Visit) -> EntryList:
    found = await _read_page(visit, read_span(visit))
    return EntryList([_view(entry) for entry in found.entries], str(found.next) if found.next else None)


async def export(visit: Visit) -> Response:
    """A file in the format that the path ends with."""
    chosen = read_span(visit)
    await visit.limit("export", EXPORTS, "You have exported the statement several times. Try again in a minute.")
    entries = export_statement(visit.store, visit.owner, chosen.span if chosen else ALWAYS)
    name = f"cadenza-statement-{chosen.first_day}-to-{chosen.last_day}" if chosen else "cadenza-statement"
    form = visit.path.rpartition(".")[2]
    return await stream_rows(name, form, FIELDS, _pages(entries), _shown, visit.context.export_pace)


async def _read_page(visit: Visit, chosen: ChosenSpan | None) -> StatementPage:
    if chosen:
        await visit.limit("statement", SPANS, "Too many statements at once. Try again in a moment.")
    cursor, span = visit.query_fields.get("cursor", "")[:CURSOR_CHARS_MAX], chosen.span if chosen else None
    return await read_statement(visit.store, visit.owner, cursor, span=span)


async def _pages(entries: AsyncIterator[Entry]) -> AsyncIterator[list[Entry]]:
    page: list[Entry] = []
    async for entry in entries:
        page.append(entry)
        if len(page) == ROWS_AT_ONCE:
            yield page
            page = []
    if page:
        yield page


def _shown(entry: Entry) -> dict[str, object]:
    return msgspec.structs.asdict(_view(entry))


def _view(entry: Entry) -> EntryView:
    return to_record(
        EntryView,
        entry,
        description=describe_entry(entry),
        model=entry.class_id,
        input_price=dollars_or_none(entry.input_nano),
        cached_input_price=dollars_or_none(entry.cached_input_nano),
        output_price=dollars_or_none(entry.output_nano),
    )


ROUTES: Routes = (
    get("/credit/statement", statement_page),
    get("/credit/statement.csv", export),
    get("/credit/statement.json", export),
    endpoint("GET", "/statement", "Every entry of the account, newest first", get_statement, "credit:read"),
)
