"""Requests with tools: their definitions, the tool choice, and the tool calls of the history."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.chat import ChatRequest
from cadenza.core.errors import InvalidRequest
from cadenza.core.records import OUTPUT_TOKENS_MAX
from cadenza.core.tool_calls import wrap_id
from cadenza.gateway.tools import TOOLS_MAX
from cadenza.gateway.validate import check_context, parse_chat
from tests.unit.gateway.prompts import TOKENIZER

USER = {"role": "user", "content": "hi"}
RECURSIVE = {"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"}
PLACE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: Any = "look", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def parse(**fields: Any) -> ChatRequest:
    return parse_chat(json.dumps({"messages": [USER]} | fields).encode())


def refusal(**fields: Any) -> str:
    with pytest.raises(InvalidRequest) as refused:
        parse(**fields)
    return refused.value.message


NAME = "must be 1 to 64 letters, digits, underscores or dashes"
REFUSED: dict[str, tuple[list[Any], str]] = {
    "no name": ([{"type": "function", "function": {}}], f"tools[0].function.name: {NAME}"),
    "name null": ([tool(None)], f"tools[0].function.name: {NAME}"),
    "name empty": ([tool("")], f"tools[0].function.name: {NAME}"),
    "name with a space": ([tool("a"), tool("look up")], f"tools[1].function.name: {NAME}"),
    "name with a dot": ([tool("a.b")], f"tools[0].function.name: {NAME}"),
    "name with an umlaut": ([tool("größe")], f"tools[0].function.name: {NAME}"),
    "name with a superscript digit": ([tool("a²")], f"tools[0].function.name: {NAME}"),
    "name with a line end": ([tool("look\n")], f"tools[0].function.name: {NAME}"),
    "name of 65": ([tool("a" * 65)], f"tools[0].function.name: {NAME}"),
    "name a number": ([tool(7)], "tools[0].function.name: expected"),
    "no function": ([{"type": "function"}], f"tools[0].function.name: {NAME}"),
    "function null": ([{"type": "function", "function": None}], f"tools[0].function.name: {NAME}"),
    "function a name": ([{"type": "function", "function": "look"}], "tools[0].function: expected"),
    "same name twice": ([tool(), tool("a"), tool()], "tools[2].function.name: 'look' is defined twice"),
    "parameters a string": ([tool(parameters="{}")], "tools[0].function.parameters: expected"),
    "parameters an array": ([tool("a"), tool(parameters=[])], "tools[1].function.parameters: expected"),
    "parameters true": ([tool(parameters=True)], "tools[0].function.parameters: expected"),
    "too many": ([tool(f"f{n}") for n in range(TOOLS_MAX + 1)], "tools: 129 were sent; at most 128"),
    "unknown type": ([tool("a"), {"type": "web_search"}], "tools[1].type: must be"),
    "hosted type": ([{"type": "code_interpreter", "container": {"type": "auto"}}], "tools[0].type: must be"),
    "unknown type with a function": ([{"type": "retrieval", "function": {"name": "look"}}], "tools[0].type: must be"),
    "no type": ([{"function": {"name": "look"}}], "tools[0].type: must be"),
    "type a number": ([{"type": 1, "function": {"name": "look"}}], "tools[0].type: expected"),
    "null": ([None], "tools[0]: expected"),
    "a string": ([tool("a"), "look"], "tools[1]: expected"),
    "custom without name": ([{"type": "custom", "custom": {}}], f"tools[0].custom.name: {NAME}"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_definition_is_refused_by_its_path(case: str) -> None:
    """A definition that OpenAI refuses is refused with its path."""
    tools, sentence = REFUSED[case]
    assert refusal(tools=tools).startswith(sentence)


ACCEPTED: dict[str, list[Any]] = {
    "a name alone": [tool()],
    "a name of 64": [tool("a" * 64)],
    "a name of all allowed characters": [tool("aZ09_-")],
    "128 tools": [tool(f"f{n}") for n in range(TOOLS_MAX)],
    "description null": [tool(description=None, parameters=PLACE)],
    "parameters null": [tool(parameters=None)],
    "parameters empty": [tool(parameters={})],
    "strict": [tool(strict=True, parameters={**PLACE, "additionalProperties": False})],
    "unknown keys": [{**tool(x_vendor=[1, None], strict=None), "cache_control": {"type": "ephemeral"}}],
    "a megabyte of schema": [tool(parameters={**PLACE, "description": "x" * 1_000_000})],
    "a recursive reference": [tool(parameters=RECURSIVE)],
    "a reference to nowhere": [tool(parameters={"$ref": "#/$defs/none"})],
    "a malformed schema": [tool(parameters={"type": "banana", "properties": 7})],
    "custom": [{"type": "custom", "custom": {"name": "run", "format": {"type": "text"}}}],
    "custom beside a function": [tool(), {"type": "custom", "custom": {"name": "run"}}],
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_a_good_definition_is_forwarded(case: str) -> None:
    """A definition that OpenAI accepts is accepted; the content of a schema is the upstream's to judge."""
    tools = parse(tools=ACCEPTED[case]).tools
    assert tools.keys() == {"tools"}
    assert json.loads(bytes(tools["tools"])) == ACCEPTED[case]


def test_tool_fields_are_forwarded_byte_for_byte() -> None:
    """Order, escapes, numbers and spaces of `tools` and `tool_choice` reach the upstream unchanged."""
    tools = b'[ {"function":{ "parameters":{"maximum":1.50e1,"x":"\\u00e9\\/"},\t"name":"look"} , "type":"function"}\n]'
    choice = b'{ "function" :{"name":"l\\u006fok", "x":null},"type":"function" }'
    head = b'{"messages":[{"role":"user","content":"hi"}],'
    request = parse_chat(head + b'"tools":%b,"tool_choice": %b ,"parallel_tool_calls": false}' % (tools, choice))
    raw = {name: bytes(value) for name, value in request.tools.items()}
    assert raw == {"tools": tools, "tool_choice": choice, "parallel_tool_calls": b"false"}


CUSTOM = {"type": "custom", "custom": {"name": "run"}}
FORCED = {"type": "function", "function": {"name": "look"}}
CHOICES: dict[str, Any] = {
    "auto": "auto",
    "none": "none",
    "required": "required",
    "forced": FORCED,
    "forced with an unknown field": {**FORCED, "x": 1},
    "allowed tools": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [FORCED]}},
    "forced custom": CUSTOM,
}


@pytest.mark.parametrize("case", CHOICES)
def test_a_choice_is_forwarded(case: str) -> None:
    """Every form of `tool_choice` that OpenAI has is forwarded unchanged."""
    tools = parse(tools=[tool(), CUSTOM], tool_choice=CHOICES[case]).tools
    assert json.loads(bytes(tools["tool_choice"])) == CHOICES[case]


@pytest.mark.parametrize(
    "choice",
    [
        "any",
        "look",
        "",
        "AUTO",
        7,
        True,
        [],
        ["auto"],
        {"type": "function"},
        {"type": "function", "function": None},
        {"type": "function", "function": {}},
        {"type": "function", "function": {"name": "leap"}},
        {"type": "function", "function": {"name": None}},
        {"type": "function", "function": {"name": ["look"]}},
        {"type": "function", "function": {"name": {"look": 1}}},
        {"type": "function", "name": "look"},
        {"type": "function", "function": {"name": "run"}},
        {"type": "custom", "custom": {"name": "look"}},
        {"type": "custom", "custom": {"name": "leap"}},
        {"type": "custom", "custom": "run"},
    ],
    ids=str,
)
def test_an_unknown_choice_is_refused(choice: Any) -> None:
    """A choice that is neither a known word nor a defined function is a 400 that names `tool_choice`."""
    assert refusal(tools=[tool()], tool_choice=choice).startswith("tool_choice: ")


@pytest.mark.parametrize("choice", ["required", FORCED], ids=str)
@pytest.mark.parametrize("tools", [None, []])
def test_a_forced_call_without_tools_is_refused(choice: Any, tools: Any) -> None:
    """The 400 says that the request defines no tools."""
    assert "defines no tools" in refusal(tools=tools, tool_choice=choice)


@pytest.mark.parametrize("choice", [None, "auto", "none"])
@pytest.mark.parametrize("tools", [None, []])
def test_without_tools_no_tool_field_is_forwarded(choice: Any, tools: Any) -> None:
    """Without tools, or with an empty array, `tool_choice` and `parallel_tool_calls` are dropped."""
    assert parse(tools=tools, tool_choice=choice, parallel_tool_calls=True).tools == {}


def test_a_null_tool_field_is_dropped() -> None:
    """A null means the same as no field."""
    assert parse(tools=[tool()], tool_choice=None, parallel_tool_calls=None).tools.keys() == {"tools"}


def test_definitions_are_counted_with_the_prompt() -> None:
    """The counted texts include the definitions as they were sent, and so does the limit of the context."""
    tools = [tool(parameters=PLACE)]
    assert parse(tools=tools).counted_texts() == ["hi", json.dumps(tools)]
    huge = parse(tools=[tool(description="é " * 1_100_000)])
    with pytest.raises(InvalidRequest, match="maximum context length is 1000000 tokens"):
        check_context(TOKENIZER.count_prompt(huge.counted_texts()))


@pytest.mark.parametrize("limit", [OUTPUT_TOKENS_MAX + 1, 943_000, 10**30])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_large_limit_is_lowered_with_tools(name: str, limit: int) -> None:
    """With tools, a limit above the largest is lowered to it; without tools it is refused."""
    assert parse(tools=[tool()], **{name: limit}).max_tokens == OUTPUT_TOKENS_MAX
    assert "max_" in refusal(**{name: limit})


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_zero_is_refused_with_tools(limit: int) -> None:
    """As it is without tools."""
    assert "positive integer" in refusal(tools=[tool()], max_tokens=limit)


def call(call_id: Any, arguments: str = "{}", **fields: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}, **fields}


def calls(*given_calls: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(given_calls), **fields}


def answer(call_id: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "42", **fields}


HISTORIES: dict[str, list[Any]] = {
    "one call": [USER, calls(call("a")), answer("a")],
    "answered in another order": [USER, calls(call("a"), call("b"), call("c")), answer("c"), answer("a"), answer("b")],
    "several rounds": [
        USER,
        calls(call("a")),
        answer("a"),
        calls(call("b"), call("c")),
        answer("b"),
        answer("c"),
        USER,
    ],
    "an id used again in a later round": [USER, calls(call("a")), answer("a"), calls(call("a")), answer("a")],
    "no content at all": [USER, {"role": "assistant", "tool_calls": [call("a")]}, answer("a")],
    "empty content": [USER, calls(call("a"), content=""), answer("a")],
    "content beside calls": [USER, calls(call("a"), content="Let me look."), answer("a", name="look")],
    "content in parts": [USER, calls(call("a")), answer("a", content=[{"type": "text", "text": "42"}])],
    "arguments that are not JSON": [USER, calls(call("a", "{city: Oslo")), answer("a")],
    "empty arguments": [USER, calls(call("a", "")), answer("a")],
    "a custom call": [
        USER,
        calls({"id": "a", "type": "custom", "custom": {"name": "run", "input": "x"}}),
        answer("a"),
    ],
    "unknown keys": [
        USER,
        calls(call("a", index=0, provider_specific_fields=None), reasoning_content="hm"),
        answer("a"),
    ],
    "no type": [USER, calls({"id": "a", "function": {"name": "look", "arguments": "{}"}}), answer("a")],
    "nulls of an answer": [USER, calls(call("a")), answer("a", tool_calls=None, name=None, function_call=None)],
    "nulls of a call": [USER, calls(call("a"), tool_call_id=None, refusal=None, function_call=None), answer("a")],
    "an id with odd characters": [USER, calls(call('functions.look:0/é\\"')), answer('functions.look:0/é\\"')],
    "foreign ids that look like ours": [
        USER,
        calls(call("call_abcdefghijklmnopqrstuvwxyz")),
        answer("call_abcdefghijklmnopqrstuvwxyz"),
    ],
}


@pytest.mark.parametrize("has_tools", [True, False])
@pytest.mark.parametrize("case", HISTORIES)
def test_a_history_is_forwarded_unchanged(case: str, has_tools: bool) -> None:
    """Answered calls are forwarded with all their fields, in requests with tools and in later ones without."""
    request = parse(messages=HISTORIES[case], tools=[tool()] if has_tools else None)
    assert [json.loads(bytes(raw)) for raw in request.messages] == HISTORIES[case]


BROKEN: dict[str, tuple[list[Any], str]] = {
    "a call left open at the end": ([USER, calls(call("a"))], "messages[1].tool_calls[0]: the call 'a'"),
    "one of two left open": (
        [USER, calls(call("a"), call("b")), answer("a")],
        "messages[1].tool_calls[1]: the call 'b'",
    ),
    "left open before a user message": ([USER, calls(call("a")), USER, answer("a")], "messages[1].tool_calls[0]"),
    "left open before the next calls": (
        [USER, calls(call("a")), calls(call("b")), answer("a"), answer("b")],
        "messages[1].tool_calls[0]: the call 'a'",
    ),
    "an answer without a call": ([USER, answer("zz")], "messages[1].tool_call_id: 'zz' answers no call"),
    "an answer to another call": (
        [USER, calls(call("a")), answer("b")],
        "messages[2].tool_call_id: 'b' answers no call",
    ),
    "an answer before its call": ([USER, answer("a"), calls(call("a"))], "messages[1].tool_call_id: 'a'"),
    "a second answer": ([USER, calls(call("a")), answer("a"), answer("a")], "messages[3].tool_call_id: 'a'"),
    "an answer to a call of an earlier round": (
        [USER, calls(call("a")), answer("a"), calls(call("b")), answer("a")],
        "messages[4].tool_call_id: 'a'",
    ),
    "an answer without an id": ([USER, calls(call("a")), answer(None)], "messages[2].tool_call_id: a tool message"),
    "a call without an id": ([USER, calls({"function": {"name": "x"}})], "messages[1].tool_calls[0]: object missing"),
    "an id that is a number": ([USER, calls(call(7))], "messages[1].tool_calls[0].id: expected"),
    "arguments that are an object": (
        [USER, calls({"id": "a", "function": {"name": "x", "arguments": {}}})],
        "messages[1].tool_calls[0].function.arguments: expected",
    ),
    "a function without a name": ([USER, calls({"id": "a", "function": {}})], "messages[1].tool_calls[0].function"),
    "calls that are not an array": ([USER, calls() | {"tool_calls": {}}], "messages[1].tool_calls: expected"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_inconsistent_history_is_refused(case: str) -> None:
    """A call without an answer, or an answer without a call, is a 400 with its path and its id."""
    messages, sentence = BROKEN[case]
    assert refusal(messages=messages, tools=[tool()]).startswith(sentence)


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
