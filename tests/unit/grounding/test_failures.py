"""Why a part of grounding was left out, as the metrics say it."""

import pytest

from cadenza.grounding.files.reader import ReaderBusy
from cadenza.grounding.gather import failure_reason
from cadenza.grounding.search.records import EngineFailed
from cadenza.store.store import StoreUnavailable


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (EngineFailed("json_disabled"), "json_disabled"),
        (TimeoutError(), "late"),
        (StoreUnavailable("The store at /srv/a.db cannot be used."), "store"),
        (ReaderBusy(), "readers"),
    ],
)
def test_reasons_are_few_words(failure: Exception, reason: str) -> None:
    """An engine's failure has the engine's word; the others have one word each, and no text of an exception."""
    assert failure_reason(failure) == reason
