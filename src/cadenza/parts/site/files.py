"""Files that the browser saves: a table as CSV or as a JSON list, whole or streamed."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
from starlette.responses import Response, StreamingResponse

from cadenza.core.csv_text import csv_text
from cadenza.pace import Pace
from cadenza.parts.site.routes import JSON

CSV = "text/csv; charset=utf-8"
ROWS_AT_ONCE = 16  # some take 40 µs each

T = TypeVar("T")
Row = dict[str, object]
Pieces = AsyncIterator[list[Row]]


def csv_file(name: str, rows: Iterable[Iterable[object]]) -> Response:
    return Response(csv_text(rows), headers=saved_as(f"{name}.csv"), media_type=CSV)


async def stream_rows(
    name: str,
    form: str,
    fields: Sequence[str],
    rest: AsyncIterator[list[T]],
    show: Callable[[T], Row],
    pace: Pace,
) -> StreamingResponse:
    """What all pages have as one file. `form` is csv or json; CSV has these fields of each row.

    The first page is read before the reply begins, so that a store that refuses it gives an error of its own.
    """
    pages, headers = _in_pieces(await anext(rest, []), rest, show, pace), saved_as(f"{name}.{form}")
    if form == "csv":
        return StreamingResponse(_csv(fields, pages), headers=headers, media_type=CSV)
    return StreamingResponse(_json(pages), headers=headers, media_type=JSON)


def saved_as(name: str) -> dict[str, str]:
    """The headers that have a browser save the reply under this name."""
    return {"content-disposition": f'attachment; filename="{name}"'}


async def _in_pieces(
    page: list[T] | None, rest: AsyncIterator[list[T]], show: Callable[[T], Row], pace: Pace
) -> Pieces:
    while page is not None:
        for start in range(0, len(page), ROWS_AT_ONCE):
            async with pace:
                rows = [show(one) for one in page[start : start + ROWS_AT_ONCE]]
            yield rows
        page = await anext(rest, None)


async def _csv(fields: Sequence[str], pages: Pieces) -> AsyncIterator[bytes]:
    yield csv_text([fields]).encode()
    async for rows in pages:
        yield csv_text([row[name] for name in fields] for row in rows).encode()


async def _json(pages: Pieces) -> AsyncIterator[bytes]:
    before = b'{"object":"list","data":['
    async for rows in pages:
        if rows:
            yield before + b",".join(map(msgspec.json.encode, rows))
            before = b","
    yield (b"" if before == b"," else before) + b"]}"
