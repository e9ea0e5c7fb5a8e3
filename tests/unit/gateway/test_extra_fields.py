"""Fields that the service does not know: which are kept, and what is counted of those that a route passes on."""

import json

import msgspec
import pytest

from cadenza.core.errors import InvalidRequest
from cadenza.core.records import Plan, Route
from cadenza.gateway.extra_fields import count_passed_fields
from cadenza.gateway.validate import parse_chat
from tests.unit.gateway.prompts import TOKENIZER, prompt_of

MESSAGES = [{"role": "user", "content": "hi"}]


def route(*passes: str) -> Route:
    return Route("a", "m", 1000, 100, passes=passes)


def fields(**values: object) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in values.items()}


async def test_what_any_route_passes_on_is_counted() -> None:
    """Its text is a part of the prompt, so that credit is held for it; its bytes are in the body already."""
    plan = Plan.of("forte", (route(), route("chat_template_kwargs")))
    prompt, size_bytes = prompt_of(20), prompt_of(20).bound
    text = "a text that a template may put into the prompt " * 20
    count_passed_fields(fields(chat_template_kwargs={"a": text}, user=text), plan, prompt)
    assert await prompt.count() - 20 >= TOKENIZER.count(text)
    assert await prompt.count() - 20 < 2 * TOKENIZER.count(text)  # what is dropped is not counted
    assert prompt.bound == size_bytes


def test_deprecated_fields_are_refused_behind_any_number_of_others() -> None:
    """However many fields are sent before them, `functions` are never dropped silently."""
    body = {f"field_{number}": 1 for number in range(500)} | {"messages": MESSAGES, "functions": [{"name": "f"}]}
    with pytest.raises(InvalidRequest, match="functions and function_call"):
        parse_chat(json.dumps(body).encode())
