"""Tools on the real model: calls always fit their schema, and replies always have the right form."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.raw_client import RawClient
from tests.schemas import Called, check_completion, check_stream, completed_calls

OUTPUT_TOKENS = 100  # more than a call of these schemas takes, because strings are bounded
WORDS_TOKENS = 8
pytestmark = pytest.mark.slow(reason="the real model writes for a minute")


def tool(name: str, description: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = tool("get_weather", "The weather of a city.", unit={"enum": ["celsius", "kelvin"]})
ADD = tool("add", "Sum two numbers.", a={"type": "number"}, b={"type": "integer", "minimum": 0, "maximum": 9})
BOOK = tool(
    "book",
    "Reserve a table.",
    guest={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    hour={"type": "integer", "minimum": 0, "maximum": 23},
    wishes={"type": "array", "items": {"enum": ["window", "quiet"]}, "minItems": 1, "maxItems": 2},
    note={"type": ["string", "null"], "maxLength": 8},
)
TAG = tool("tag", "Label a text.", tags={"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 1})
PING = {"type": "function", "function": {"name": "ping", "description": None}}
ASKED = {"book": (BOOK, "A table for Ada at 19."), "ping": (PING, "Is anybody there?")}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def force(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def ask(wire: RawClient, messages: list[Any], tools: list[Any], **fields: Any) -> tuple[str | None, tuple[Called, ...]]:
    """Content and calls of a reply, after checks of its form and counts."""
    sent = {"messages": messages, "tools": tools, "temperature": 0, "max_tokens": OUTPUT_TOKENS, **fields}
    reply = wire.chat(**sent)
    assert reply.status == 200, reply.body
    if fields.get("stream"):
        stream = check_stream(reply.body)
        _check_counts(stream.usage, sent["max_tokens"])
        return stream.text or None, stream.calls
    check_completion(reply.json)
    _check_counts(reply.json["usage"], sent["max_tokens"])
    return reply.json["choices"][0]["message"]["content"], completed_calls(reply.json)


def _check_counts(usage: Any, output_tokens: int) -> None:
    assert usage["prompt_tokens"] > 0
    assert 0 < usage["completion_tokens"] <= output_tokens


def check_call(call: Called, definition: Any) -> None:
    """The call is of this tool, and its arguments are valid JSON for the tool's schema."""
    function = definition["function"]
    assert call.name == function["name"]
    Draft202012Validator(function.get("parameters", {"const": {}})).validate(json.loads(call.arguments))


@pytest.mark.parametrize("name", ASKED)
def test_forced_call_fits_its_schema(wire: RawClient, name: str) -> None:
    """A forced call is the whole reply, and its arguments fit: object, string, number, array, enum, null, or none."""
    definition, text = ASKED[name]
    content, calls = ask(wire, [user(text)], [definition], tool_choice=force(name), stream=True)
    assert content is None
    (call,) = calls
    check_call(call, definition)


def test_forced_call_in_a_whole_reply(wire: RawClient) -> None:
    """A non-streaming reply has the forced call and no content, even if another tool fits the message."""
    content, calls = ask(wire, [user("Add 2 and 3.")], [ADD, TAG], tool_choice=force("tag"))
    assert content is None
    (call,) = calls
    check_call(call, TAG)


@pytest.mark.release(reason="what the model makes of small talk changes with the model only")
def test_required_call_is_made_in_small_talk(wire: RawClient) -> None:
    """With `required` one of the tools is called, even for small talk."""
    _, calls = ask(wire, [user("Hi, how are you?")], [ADD, TAG], tool_choice="required")
    (call,) = calls
    check_call(call, {"add": ADD, "tag": TAG}[call.name])


def test_none_never_calls(wire: RawClient) -> None:
    """With `none` a message that fits a tool is answered in words."""
    asked = [user("What is the weather in Paris?")]
    content, calls = ask(wire, asked, [WEATHER], tool_choice="none", max_tokens=WORDS_TOKENS)
    assert calls == ()
    assert content


def test_auto_calls_the_tool_that_fits(wire: RawClient) -> None:
    """With `auto` a message that fits a tool leads to a call of that tool."""
    _, calls = ask(wire, [user("What is the weather in Paris?")], [ADD, WEATHER], stream=True)
    (call,) = calls
    check_call(call, WEATHER)


@pytest.mark.release(reason="what the model makes of small talk changes with the model only")
def test_auto_answers_small_talk(wire: RawClient) -> None:
    """With `auto` small talk is answered in words."""
    content, calls = ask(wire, [user("Hi, how are you?")], [WEATHER, ADD], max_tokens=WORDS_TOKENS, stream=True)
    assert calls == ()
    assert content


def test_result_is_answered_in_words(wire: RawClient) -> None:
    """The result of a tool is answered in words: without a call, and without a call written as text."""
    function = {"name": "get_weather", "arguments": '{"unit": "celsius"}'}
    history = [
        user("What is the weather in Paris?"),
        {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "x", "content": "It is 21 degrees and sunny."},
    ]
    content, calls = ask(wire, history, [WEATHER], max_tokens=WORDS_TOKENS)
    assert calls == ()
    assert content
    assert "get_weather(" not in content
