"""The token budgets of the parts of grounding, and why one was left out."""

import json

import pytest

from cadenza.core.chat import ChatRequest
from cadenza.core.records import Plan, Route
from cadenza.gateway.validate import parse_chat
from cadenza.parts.grounding.files.reader import ReaderBusy
from cadenza.parts.grounding.gather import failure_reason, token_budget
from cadenza.parts.grounding.search.records import EngineFailed
from cadenza.store.store import StoreUnavailable
from tests.unit.gateway.prompts import prompt_of

PLAN = Plan.of("forte", (Route("provider", "model", 16_000, 1_000),))


def chat_with(name: str, count: int = 4) -> ChatRequest:
    part = {"type": "file", "file": {"filename": name, "file_data": "QQ=="}}
    return parse_chat(json.dumps({"messages": [{"role": "user", "content": [part] * count}]}).encode())


async def test_the_names_of_files_leave_less_room_for_their_text() -> None:
    """A long name in a rare script takes hundreds of tokens, which must fit the window too."""
    short = await token_budget(PLAN, prompt_of(100), chat_with("a.txt"))
    long = await token_budget(PLAN, prompt_of(100), chat_with("\U00020bb7" * 120))
    assert short.files - long.files > 4 * 120
    assert (short.memory, short.search) == (long.memory, long.search)


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
