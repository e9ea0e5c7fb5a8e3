"""The events of a stream: each chunk decoded and compared."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.chat import FinishReason
from cadenza.core.records import Usage
from cadenza.core.tool_calls import ToolCallDelta
from cadenza.gateway.chunks import Chunks

HEAD = {"id": "chatcmpl-x", "object": "chat.completion.chunk", "created": 1_800_000_000, "model": "forte"}

texts = st.text(st.characters(exclude_categories=["Cs"]))


def chunks() -> Chunks:
    return Chunks("chatcmpl-x", 1_800_000_000, "forte")


def decode(event: bytes) -> Any:
    """The JSON of one event, which must be a single line."""
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    assert b"\r" not in event
    return msgspec.json.decode(event.removeprefix(b"data: "))


def choice(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def test_the_first_chunk_has_the_role() -> None:
    """The role and an empty text, no finish reason and no usage."""
    assert decode(chunks().role()) == choice({"role": "assistant", "content": ""})


@settings(max_examples=100, deadline=None)
@given(texts)
def test_a_content_chunk_holds_any_text(text: str) -> None:
    """For any text the chunk is one event of valid JSON that holds it unchanged."""
    assert decode(chunks().content(text)) == choice({"content": text})


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter"])
def test_the_finish_chunk_has_an_empty_delta_and_the_reason(reason: FinishReason) -> None:
    """Nothing is said after the finish reason."""
    assert decode(chunks().finish(reason)) == choice({}, reason)


def test_the_usage_chunk_has_no_choices() -> None:
    """An empty array of choices, and the counts."""
    assert decode(chunks().usage(Usage(9, 3, 2))) == {
        **HEAD,
        "choices": [],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 3,
            "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }


@settings(max_examples=100, deadline=None)
@given(texts, st.integers(0, 2**53), st.text(max_size=9))
def test_the_constant_part_of_a_chunk_is_valid_json(completion_id: str, created: int, class_id: str) -> None:
    """Any id, time and class can be spliced with a delta."""
    event = decode(Chunks(completion_id, created, class_id).content("x"))
    assert (event["id"], event["created"], event["model"]) == (completion_id, created, class_id)


def test_a_tool_call_is_named_once() -> None:
    """The first delta of a call has its id, type and name; a later one has only arguments."""
    first, later = ToolCallDelta(1, '{"a"', "call_x", "look"), ToolCallDelta(1, ":1}")
    look = {"name": "look", "arguments": '{"a"'}
    named = {"index": 1, "id": "call_x", "type": "function", "function": look}
    assert decode(chunks().call(first)) == choice({"tool_calls": [named]})
    assert decode(chunks().call(later)) == choice({"tool_calls": [{"index": 1, "function": {"arguments": ":1}"}}]})
