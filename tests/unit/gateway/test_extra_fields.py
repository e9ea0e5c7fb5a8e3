"""Fields that the service does not know: which are kept, and what is counted of those that a route passes on."""

import json
import re

import pytest

from cadenza.core.chat import ChatRequest
from cadenza.core.errors import InvalidRequest
from cadenza.core.records import Plan, Route
from cadenza.gateway.extra_fields import PASSED_BYTES_MAX, with_passed_fields
from cadenza.gateway.validate import parse_chat
from tests.unit.gateway.prompts import TOKENIZER, prompt_of

MESSAGES = [{"role": "user", "content": "hi"}]


def route(*passes: str) -> Route:
    return Route("a", "m", 1000, 100, passes=passes)


def chat_with(**values: object) -> ChatRequest:
    return parse_chat(json.dumps({"messages": MESSAGES, **values}).encode())


async def test_what_any_route_passes_on_is_counted() -> None:
    """Its text is a part of the prompt, so that credit is held for it; its bytes are in the body already."""
    plan = Plan.of("forte", (route(), route("chat_template_kwargs")))
    prompt, size_bytes = prompt_of(20), prompt_of(20).bound
    text = "a text that a template may put into the prompt " * 20
    with_passed_fields(chat_with(chat_template_kwargs={"a": text}, user=text), plan, prompt, "acc_1")
    assert await prompt.count() - 20 >= TOKENIZER.count(text)
    assert await prompt.count() - 20 < 2 * TOKENIZER.count(text)  # what is dropped is not counted
    assert prompt.bound == size_bytes


def test_an_account_has_cache_keys_of_its_own() -> None:
    """The same key of an account stays the same, that of another account differs, and none has what the client sent."""
    plan = Plan.of("forte", (route("prompt_cache_key"),))

    def sent(key: object, account_id: str) -> str:
        chat = with_passed_fields(chat_with(prompt_cache_key=key, user="u"), plan, prompt_of(20), account_id)
        assert bytes(chat.extra["user"]) == b'"u"'
        return str(json.loads(bytes(chat.extra["prompt_cache_key"])))

    first = sent("session-of-ada", "acc_1")
    assert sent("session-of-ada", "acc_1") == first
    others = {sent("session-of-ada", "acc_2"), sent("session", "acc_1"), sent({"a": 1}, "acc_1"), first}
    assert len(others) == 4
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in others)


def test_a_cache_key_that_no_route_takes_is_left_alone() -> None:
    """However long it is, nothing is computed of it; one that is sent has a limit."""
    chat = chat_with(prompt_cache_key="x" * PASSED_BYTES_MAX)
    assert with_passed_fields(chat, Plan.of("forte", (route("top_k"),)), prompt_of(20), "acc_1") is chat
    with pytest.raises(InvalidRequest, match="prompt_cache_key: is larger than 64 KiB"):
        with_passed_fields(chat, Plan.of("forte", (route("prompt_cache_key"),)), prompt_of(20), "acc_1")


def test_deprecated_fields_are_refused_behind_any_number_of_others() -> None:
    """However many fields are sent before them, `functions` are never dropped silently."""
    body = {f"field_{number}": 1 for number in range(500)} | {"messages": MESSAGES, "functions": [{"name": "f"}]}
    with pytest.raises(InvalidRequest, match="functions and function_call"):
        parse_chat(json.dumps(body).encode())
