"""Tables as files: what is read before the reply begins."""

from collections.abc import AsyncIterator

import pytest

from cadenza.store.store import ReportsBusy
from cadenza.web.files import stream_rows


@pytest.mark.parametrize("form", ["csv", "json"])
async def test_a_refused_first_page_is_an_error_and_not_half_a_file(form: str) -> None:
    """The error of the first page is raised, so that the visitor gets a 429 with its reason."""

    async def refused(pages: int = 1) -> AsyncIterator[list[dict[str, object]]]:
        if pages:
            raise ReportsBusy
        yield []

    with pytest.raises(ReportsBusy):
        await stream_rows("table", form, ("id",), refused())
