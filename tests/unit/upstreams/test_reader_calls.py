"""Decoding the tool calls of upstreams, up to the calls that a client gets."""

import json
from typing import Any

import pytest

from cadenza.core.chat import assemble_calls
from cadenza.core.tool_calls import ToolCallNormalizer, ToolCallPart
from cadenza.upstreams.base import Piece
from cadenza.upstreams.reader import read_chunk, read_whole

OSLO = '{"city":"Oslo"}'


def function(name: Any = "look", arguments: Any = OSLO) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def delta(**fields: Any) -> Piece:
    piece = read_chunk(json.dumps({"choices": [{"index": 0, "delta": fields}]}).encode())
    assert piece is not None
    return piece


def whole(**fields: Any) -> Piece:
    message = {"role": "assistant", "content": None, **fields}
    return read_whole(json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode())


def calls_of(*pieces: Piece) -> list[tuple[str, str]]:
    """Name and arguments of the calls that a client gets from these pieces."""
    normalizer = ToolCallNormalizer()
    deltas = [delta for piece in pieces for delta in normalizer.take(piece.calls)] + normalizer.finish()
    functions = [call["function"] for call in assemble_calls(deltas)]
    return [(function["name"], function["arguments"]) for function in functions]


@pytest.mark.parametrize(
    ("call", "part"),
    [
        ({"index": 1, "id": "x", "type": "function", "function": function()}, ToolCallPart(1, "x", "look", OSLO)),
        ({"index": 1, "function": {"arguments": '{"c'}}, ToolCallPart(1, "", "", '{"c')),
        ({"index": 0, "function": function(arguments={"city": "Oslo"})}, ToolCallPart(0, "", "look", OSLO)),
        ({"index": 0, "function": function(arguments={})}, ToolCallPart(0, "", "look", "{}")),
        ({"index": 0, "function": function(arguments=[1])}, ToolCallPart(0, "", "look", "[1]")),
        ({"index": 0, "function": function(arguments=None)}, ToolCallPart(0, "", "look", "")),
        ({"index": 0, "function": function(arguments=7)}, ToolCallPart(0, "", "look", "")),
        ({"function": function()}, ToolCallPart(None, "", "look", OSLO)),
        ({"index": None, "id": None, "function": function()}, ToolCallPart(None, "", "look", OSLO)),
        ({"index": "1", "function": function()}, ToolCallPart(None, "", "look", OSLO)),
        ({"index": True, "function": function()}, ToolCallPart(None, "", "look", OSLO)),
        ({"index": 1.0, "id": 7, "function": function(name=None)}, ToolCallPart(None, "", "", OSLO)),
        ({"index": 0, "id": "x"}, ToolCallPart(0, "x")),
        ({"index": 0, "id": "x", "function": None}, ToolCallPart(0, "x")),
        ({"index": 0, "id": "x", "function": "look"}, ToolCallPart(0, "x")),
        ({}, ToolCallPart()),
    ],
    ids=str,
)
def test_the_part_of_a_call(call: dict[str, Any], part: ToolCallPart) -> None:
    """Arguments become text, an index is an integer or None, and missing fields are empty."""
    assert delta(tool_calls=[call]) == Piece(calls=(part,), has_begun=True)


@pytest.mark.parametrize("calls", [None, [], [None], ["look"], {}, "look", 7], ids=str)
def test_other_values_are_not_calls(calls: Any) -> None:
    """A list without calls, or another type of value, has no call and does not begin the answer."""
    assert delta(tool_calls=calls) == Piece()


def test_a_message_may_have_one_call_twice() -> None:
    """Two equal calls without ids are two calls."""
    assert calls_of(whole(tool_calls=[{"function": function()}] * 2)) == [("look", OSLO)] * 2


@pytest.mark.parametrize("read", [delta, whole])
def test_a_function_call_counts_beside_an_empty_list(read: Any) -> None:
    """An empty `tool_calls` does not hide a `function_call`."""
    assert calls_of(read(tool_calls=[], function_call=function())) == [("look", OSLO)]
