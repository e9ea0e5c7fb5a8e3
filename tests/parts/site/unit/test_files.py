"""Tables as files: what is read before the reply begins, and what may run while they are written."""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator

import pytest

from cadenza.pace import Pace
from cadenza.parts.site.files import ROWS_AT_ONCE, stream_rows
from cadenza.store.store import ReportsBusy


@pytest.mark.parametrize("form", ["csv", "json"])
async def test_a_refused_first_page_is_an_error_and_not_half_a_file(form: str) -> None:
    """The error of the first page is raised, so that the visitor gets a 429 with its reason."""

    async def refused(pages: int = 1) -> AsyncIterator[list[dict[str, object]]]:
        if pages:
            raise ReportsBusy
        yield []

    with pytest.raises(ReportsBusy):
        await stream_rows("table", form, ("id",), refused(), dict, Pace())


@pytest.mark.parametrize("form", ["csv", "json"])
async def test_other_requests_run_while_a_file_is_written(form: str) -> None:
    """A page of many rows is written in pieces, and the event loop goes on after each."""

    async def pages() -> AsyncIterator[list[int]]:
        yield list(range(10 * ROWS_AT_ONCE))

    shown, turns = list[int](), list[int]()

    def show(number: int) -> dict[str, object]:
        shown.append(number)
        return {"id": number}

    async def count_turns() -> None:
        while True:
            turns.append(len(shown))
            await asyncio.sleep(0)

    response = await stream_rows("table", form, ("id",), pages(), show, Pace())
    other = asyncio.create_task(count_turns())
    written = "".join([str(piece) async for piece in response.body_iterator])
    other.cancel()
    assert max(after - before for before, after in itertools.pairwise(turns)) <= ROWS_AT_ONCE
    assert [int(number) for number in re.findall(r"\d+", written)] == list(range(10 * ROWS_AT_ONCE))
