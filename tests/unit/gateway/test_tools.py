"""Requests with tools: their definitions, the tool choice, and the tool calls of the history."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.chat import ChatRequest
from cadenza.core.errors import InvalidRequest
from cadenza.core.tool_calls import wrap_id
from cadenza.gateway.validate import parse_chat

USER = {"role": "user", "content": "hi"}
PLACE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: Any = "look", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def parse(**fields: Any) -> ChatRequest:
    return parse_chat(json.dumps({"messages": [USER]} | fields).encode())


def test_definitions_are_counted_with_the_prompt() -> None:
    """The counted texts include the definitions as they were sent."""
    tools = [tool(parameters=PLACE)]
    assert parse(tools=tools).counted_texts() == ["hi", json.dumps(tools)]


def call(call_id: Any, arguments: str = "{}", **fields: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}, **fields}


def calls(*given_calls: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(given_calls), **fields}


def answer(call_id: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "42", **fields}


@pytest.mark.parametrize("upstream_id", ["AbC123xyz", "chatcmpl-tool-1f", "functions.look:0", 'é"\\', "call_1"])
def test_our_ids_become_the_upstreams_again(upstream_id: str) -> None:
    """Where the client sends an id of ours, the upstream gets its own; foreign ids are kept."""
    ours = wrap_id(upstream_id)
    request = parse(messages=[USER, calls(call(ours), call("foreign")), answer("foreign"), answer(ours)])
    _, called, foreign, answered = [json.loads(bytes(raw)) for raw in request.messages]
    assert [one["id"] for one in called["tool_calls"]] == [upstream_id, "foreign"]
    assert (foreign["tool_call_id"], answered["tool_call_id"]) == ("foreign", upstream_id)


def test_only_the_id_of_a_call_is_changed() -> None:
    """Every other value of the message is forwarded byte for byte."""
    function = b'{ "arguments" : "{\\u0022a\\u0022:1}",  "name":"look","parsed_arguments":{"a":1.50e0} }'
    message = b'{"content":"\\u00e9","tool_calls":[{"index":0.0,"function":%b,"id":"%b"}],"x":[ 1 ],"role":"assistant"}'
    ours = wrap_id("x1").encode()
    body = b'{"messages":[%b,{"role":"tool","tool_call_id":"%b","content":"\\u00e9"}]}'
    called, answered = parse_chat(body % (message % (function, ours), ours)).messages
    assert bytes(called) == message % (function, b"x1")
    assert bytes(answered) == b'{"role":"tool","tool_call_id":"x1","content":"\\u00e9"}'


def test_calls_and_answers_are_counted() -> None:
    """The names and arguments of earlier calls, and their results, are part of the prompt."""
    messages = [USER, calls(call("a", '{"city":"Oslo"}'), content="Let me look."), answer("a")]
    assert parse(messages=messages).texts == ["hi", 'Let me look.look{"city":"Oslo"}', "42"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ids = st.sampled_from(["a", "b"]) | json_values
functions = st.fixed_dictionaries(
    {"name": st.just("look") | json_values}, optional=dict.fromkeys(("arguments", "parameters", "x"), json_values)
)
near_tools = st.fixed_dictionaries(
    {"type": st.just("function") | json_values}, optional={"function": functions | json_values, "custom": json_values}
)
near_choices = st.sampled_from(["auto", "required"]) | near_tools | json_values
near_calls = st.fixed_dictionaries({"id": ids}, optional={"type": json_values, "function": functions | json_values})
near_messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["assistant", "tool", "user"])},
    optional={
        "content": st.just("x") | json_values,
        "tool_calls": st.lists(near_calls, max_size=2) | json_values,
        "tool_call_id": ids,
    },
)


@given(st.lists(near_messages, max_size=3), st.just([tool()]) | st.lists(near_tools, max_size=2), near_choices)
def test_any_tools_are_a_request_or_a_refusal(messages: Any, tools: Any, choice: Any) -> None:
    """Definitions, choices and histories of any shape are forwarded as valid JSON or refused with a 400."""
    body = msgspec.json.encode({"messages": [USER, *messages], "tools": tools, "tool_choice": choice})
    try:
        request = parse_chat(body)
    except InvalidRequest:
        return
    for raw in [*request.messages, *request.tools.values()]:
        json.loads(bytes(raw))
