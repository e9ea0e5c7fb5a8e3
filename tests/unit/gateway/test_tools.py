"""Requests with tools: their definitions, the tool choice, and the tool calls of the history."""

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.errors import InvalidRequest
from cadenza.core.tool_calls import wrap_id
from cadenza.gateway.tools import CALLS_REPLACED_MAX
from cadenza.gateway.validate import parse_chat

USER = {"role": "user", "content": "hi"}


def tool(name: Any = "look", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def call(call_id: Any, arguments: str = "{}", **fields: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}, **fields}


def calls(*given_calls: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(given_calls), **fields}


def answer(call_id: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "42", **fields}


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


SPACED, COMPACT, ESCAPED = (", ", ": "), (",", ":"), (" ,", " : ")


@given(
    st.lists(st.sampled_from(["up_1", "call_9f", "0" * 32, 'a"b']), min_size=1, max_size=3, unique=True),
    st.sampled_from([SPACED, COMPACT, ESCAPED]),
    st.sampled_from(["", "before", "within"]),
    st.booleans(),
)
def test_ids_of_ours_become_those_of_the_upstream(
    upstream_ids: list[str], separators: tuple[str, str], other: str, is_escaped: bool
) -> None:
    """Ours are replaced however the JSON is written, where calls and answers have them, and nowhere else."""
    ours = [wrap_id(upstream_id) for upstream_id in upstream_ids]
    others = {"": {}, "before": {"name": ours[0]}, "within": {"content": f'see "{ours[0]}": {ours[0]}'}}[other]
    many = [call(f"own_{number}") for number in range(CALLS_REPLACED_MAX if other == "within" else 0)]

    def history(ids: list[str]) -> list[dict[str, Any]]:
        made = [call(one) for one in ids] + many
        return [others | calls(*made) | others, *({**others, **answer(one), **others} for one in ids)]

    sent = [USER, *history(ours), *(answer(one["id"]) for one in many)]
    body = json.dumps({"messages": sent, "tools": [tool()]}, separators=separators)
    if is_escaped:
        body = body.replace(ours[0], "\\u0063" + ours[0][1:], 2)
    expected = [USER, *history(upstream_ids), *(answer(one["id"]) for one in many)]
    assert [json.loads(bytes(raw)) for raw in parse_chat(body.encode()).messages] == expected
