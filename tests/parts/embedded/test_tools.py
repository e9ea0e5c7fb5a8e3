"""Tools on the real model: calls always fit their schema."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.raw_client import RawClient
from tests.schemas import check_completion, check_stream, completed_calls

OUTPUT_TOKENS = 100  # more than a call of these schemas takes, because strings are bounded
pytestmark = pytest.mark.slow(reason="the real model writes for a minute")


def tool(name: str, description: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


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
ASKED = {  # the tools, the message, and whether the reply is streamed
    "book": ([BOOK], "A table for Ada at 19.", True),
    "ping": ([PING], "Is anybody there?", True),
    "tag": ([ADD, TAG], "Add 2 and 3.", False),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_forced_call_fits_its_schema(wire: RawClient, name: str) -> None:
    """It is the whole reply, even if another tool fits the message, and its arguments fit: whatever they may be."""
    tools, text, stream = ASKED[name]
    reply = wire.chat(
        messages=[{"role": "user", "content": text}],
        tools=tools,
        tool_choice={"type": "function", "function": {"name": name}},
        temperature=0,
        max_tokens=OUTPUT_TOKENS,
        stream=stream,
    )
    assert reply.status == 200, reply.body
    if stream:
        read = check_stream(reply.body)
        content, calls, usage = read.text or None, read.calls, read.usage
    else:
        check_completion(reply.json)
        content, usage = reply.json["choices"][0]["message"]["content"], reply.json["usage"]
        calls = completed_calls(reply.json)
    assert (content, [call.name for call in calls]) == (None, [name])
    assert usage["prompt_tokens"] > 0
    assert 0 < usage["completion_tokens"] <= OUTPUT_TOKENS
    schema = tools[-1]["function"].get("parameters", {"const": {}})
    Draft202012Validator(schema).validate(json.loads(calls[0].arguments))
