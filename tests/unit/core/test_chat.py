"""Replies as bytes: the completion, the chunks, the counts and the ids, decoded and compared."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.chat import (
    Choice,
    Completion,
    FinishReason,
    Function,
    Model,
    ModelList,
    ReplyMessage,
    ToolCall,
    new_completion_id,
    usage_object,
)
from cadenza.core.records import Usage
from cadenza.core.tool_calls import ToolCallDelta
from cadenza.gateway.chunks import Chunks

HEAD = {"id": "chatcmpl-x", "object": "chat.completion.chunk", "created": 1_800_000_000, "model": "forte"}
COUNTS = {
    "prompt_tokens": 9,
    "completion_tokens": 3,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 0},
}
NOW_MS = 1_800_000_000_000

moments = st.integers(NOW_MS, NOW_MS + 500 * 365 * 86_400_000)


def chunks() -> Chunks:
    return Chunks("chatcmpl-x", 1_800_000_000, "forte")


def decode(event: bytes) -> Any:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    assert b"\r" not in event
    return msgspec.json.decode(event.removeprefix(b"data: "))


def choice(delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
    return {**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def test_the_first_chunk_carries_the_role() -> None:
    """The role, no text yet, no finish reason and no usage."""
    assert decode(chunks().role()) == choice({"role": "assistant", "content": ""})


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_content_chunk_carries_any_text(text: str) -> None:
    """Whatever the text, the chunk is one event of valid JSON that holds it unchanged."""
    assert decode(chunks().content(text)) == choice({"content": text})


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter"])
def test_the_last_choice_is_empty_and_says_why(reason: FinishReason) -> None:
    """An empty delta and the finish reason."""
    assert decode(chunks().finish(reason)) == choice({}, reason)


def test_the_usage_chunk_has_no_choices() -> None:
    """An empty array of choices, and the counts."""
    assert decode(chunks().usage(Usage(9, 3))) == {**HEAD, "choices": [], "usage": COUNTS}


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 2**53), st.text(max_size=9))
def test_the_constant_half_of_a_chunk_is_valid_json(completion_id: str, created: int, class_id: str) -> None:
    """The splice holds for any id, time and class."""
    event = decode(Chunks(completion_id, created, class_id).content("x"))
    assert (event["id"], event["created"], event["model"]) == (completion_id, created, class_id)


def test_a_completion_has_every_field_of_the_schema() -> None:
    """A non-streaming reply, the nulls of OpenAI's schema included."""
    completion = Completion(
        id="chatcmpl-x",
        created=1_800_000_000,
        model="forte",
        choices=(Choice(message=ReplyMessage(content="Hello"), finish_reason="stop"),),
        usage=usage_object(Usage(9, 3)),
    )
    assert msgspec.json.decode(msgspec.json.encode(completion)) == {
        "id": "chatcmpl-x",
        "object": "chat.completion",
        "created": 1_800_000_000,
        "model": "forte",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": COUNTS,
    }


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40))
def test_counts_add_up(prompt: int, completion: int, cached: int) -> None:
    """The total is prompt and completion; the cached tokens are always named."""
    shown = usage_object(Usage(prompt, completion, cached))
    assert shown.total_tokens == prompt + completion
    assert shown.prompt_tokens_details.cached_tokens == cached


def test_details_ride_along_only_where_there_are_some() -> None:
    """Details of the completion are shown where the upstream gave them, and left out otherwise."""
    with_details = Usage(9, 3, completion_details={"reasoning_tokens": 2})
    assert msgspec.to_builtins(usage_object(with_details)) == {
        **COUNTS,
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert msgspec.to_builtins(usage_object(Usage(9, 3, completion_details={}))) == COUNTS


def test_an_estimate_looks_like_any_count() -> None:
    """That a count is our own is for the books; the client sees the same fields."""
    assert msgspec.to_builtins(usage_object(Usage(9, 3, estimated=True))) == COUNTS


def test_ids_of_completions_are_url_safe_and_differ() -> None:
    """`chatcmpl-` and at least 24 url-safe characters, never the same twice, though they are made in one moment."""
    ids = {new_completion_id(NOW_MS) for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"chatcmpl-[A-Za-z0-9_-]{24,}", one) for one in ids)


@settings(max_examples=200, deadline=None)
@given(moments, moments)
def test_ids_of_completions_grow_with_time(one_ms: int, other_ms: int) -> None:
    """The id of a later moment comes after that of an earlier one, as text, for centuries."""
    earlier, later = sorted((one_ms, other_ms))
    if earlier < later:
        assert new_completion_id(earlier) < new_completion_id(later)
    assert len(new_completion_id(earlier)) == len(new_completion_id(later))


def test_ids_of_completions_cannot_be_guessed() -> None:
    """Of one moment, whoever knows an id knows nothing of the next: 24 characters of all the 64 differ, 144 bits."""
    ids = [new_completion_id(NOW_MS) for _ in range(2000)]
    differing = [len(set(characters)) for characters in zip(*ids, strict=True) if len(set(characters)) > 1]
    assert differing == [64] * 24


def test_a_list_of_models_has_the_shape_of_discovery() -> None:
    """`list` of `model`, each with its id, time and owner."""
    listed = msgspec.json.encode(ModelList(data=[Model(id="forte", created=1)]))
    assert msgspec.json.decode(listed) == {
        "object": "list",
        "data": [{"id": "forte", "object": "model", "created": 1, "owned_by": "cadenza"}],
    }


def test_a_chunk_of_calls_names_each_once() -> None:
    """The first delta of a call has its id, type and name; a later one has arguments alone."""
    deltas = [
        ToolCallDelta(0, '{"a"', "call_x", "look"),
        ToolCallDelta(1, "{}", "call_y", "idle"),
        ToolCallDelta(0, ":1}"),
    ]
    assert decode(chunks().calls(deltas))["choices"] == [
        {
            "index": 0,
            "delta": {
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "call_x",
                        "type": "function",
                        "function": {"name": "look", "arguments": '{"a"'},
                    },
                    {"index": 1, "id": "call_y", "type": "function", "function": {"name": "idle", "arguments": "{}"}},
                    {"index": 0, "function": {"arguments": ":1}"}},
                ]
            },
            "finish_reason": None,
        }
    ]


def test_a_message_of_calls_alone_has_no_content() -> None:
    """Content is null and the calls stand beside it; a message without calls has no such field."""
    call = ToolCall(id="call_x", function=Function("look", "{}"))
    assert msgspec.to_builtins(ReplyMessage(content=None, tool_calls=[call])) == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [{"id": "call_x", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    }
    assert "tool_calls" not in msgspec.to_builtins(ReplyMessage(content="Hello"))
