"""Tool calls as upstreams tell them -> parts of calls, and from there to the calls that a client gets."""

import json
from typing import Any

import pytest

from cadenza.core.chat import assemble_calls
from cadenza.core.tool_calls import ToolCallNormalizer, ToolCallPart
from cadenza.upstreams.base import Piece
from cadenza.upstreams.dialect import read_chunk, read_whole

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
    """Name and arguments of the calls that a client gets of these pieces."""
    normalizer = ToolCallNormalizer()
    deltas = [mended for piece in pieces for mended in normalizer.take(piece.calls)] + normalizer.finish()
    return [(call.function.name, call.function.arguments) for call in assemble_calls(deltas)]


@pytest.mark.parametrize(
    ("said", "part"),
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
def test_a_call_is_freed_of_its_quirks(said: dict[str, Any], part: ToolCallPart) -> None:
    """Arguments are text, an index is an integer or none, and what is not there is empty."""
    assert delta(tool_calls=[said]) == Piece(calls=(part,), has_begun=True)


@pytest.mark.parametrize("calls", [None, [], [None], ["look"], {}, "look", 7], ids=str)
def test_what_is_no_call_is_none(calls: Any) -> None:
    """A list without calls and whatever is no list make no call, and no beginning."""
    assert delta(tool_calls=calls) == Piece()


def test_content_and_calls_of_one_chunk_are_both_taken() -> None:
    """A chunk may hold words and calls."""
    piece = delta(content="Let me look.", tool_calls=[{"index": 0, "function": function()}])
    assert piece == Piece("Let me look.", calls=(ToolCallPart(0, "", "look", OSLO),), has_begun=True)


def test_a_message_may_label_all_its_calls_0() -> None:
    """In a whole message the place of a call says which it is, whatever its label and even where ids are equal."""
    said = [{"index": 0, "id": "x", "function": function("idle", "")}, {"index": 0, "id": "x", "function": function()}]
    assert calls_of(whole(tool_calls=said)) == [("idle", "{}"), ("look", OSLO)]


def test_a_message_may_hold_one_call_twice() -> None:
    """Two equal calls without ids are two calls."""
    assert calls_of(whole(tool_calls=[{"function": function()}] * 2)) == [("look", OSLO)] * 2


@pytest.mark.parametrize("read", [delta, whole])
def test_a_call_of_the_old_kind_is_a_call(read: Any) -> None:
    """`function_call` is the one call of a reply, be its arguments text or an object."""
    assert calls_of(read(function_call=function())) == [("look", OSLO)]
    assert calls_of(read(function_call=function(arguments={"city": "Oslo"}))) == [("look", OSLO)]
    assert calls_of(read(function_call=None)) == []


@pytest.mark.parametrize("read", [delta, whole])
def test_a_call_of_the_old_kind_counts_beside_an_empty_list(read: Any) -> None:
    """An upstream that fills in `tool_calls: []` beside its `function_call` has made a call."""
    assert calls_of(read(tool_calls=[], function_call=function())) == [("look", OSLO)]


def test_a_call_of_the_old_kind_may_come_in_parts() -> None:
    """The name first, then arguments piece by piece."""
    said = [{"name": "look", "arguments": ""}, {"arguments": OSLO[:5]}, {"arguments": OSLO[5:]}]
    assert calls_of(*(delta(function_call=part) for part in said)) == [("look", OSLO)]


@pytest.mark.parametrize("labels", [[0, 0, 0], [None, None, None], ["0", "1", "2"], [5, 3, 9]], ids=str)
def test_whole_calls_in_chunks_of_their_own(labels: list[Any]) -> None:
    """Calls sent whole, one a chunk, with arguments as objects and labels that mean little, are told apart."""
    cities = ["Oslo", "Rome", "Oslo"]
    pieces = [
        delta(tool_calls=[{"index": label, "function": function(arguments={"city": city})}])
        for label, city in zip(labels, cities, strict=True)
    ]
    assert calls_of(*pieces) == [("look", json.dumps({"city": city}, separators=(",", ":"))) for city in cities]
