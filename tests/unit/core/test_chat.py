"""The reply types of the API as JSON: the completion, its usage, its id and the list of models."""

import re

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.chat import Choice, Completion, Model, ModelList, ReplyMessage, new_completion_id, usage_object
from cadenza.core.records import Usage

COUNTS = {
    "prompt_tokens": 9,
    "completion_tokens": 3,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 0},
}
NOW_MS = 1_800_000_000_000

times_ms = st.integers(NOW_MS, NOW_MS + 500 * 365 * 86_400_000)


def test_a_completion_has_every_field_of_the_schema() -> None:
    """A non-streaming reply, with the nulls that OpenAI's schema requires."""
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


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40))
def test_the_total_is_the_sum_of_prompt_and_completion(prompt: int, completion: int, cached: int) -> None:
    """Cached tokens are part of the prompt and are always shown."""
    shown = usage_object(Usage(prompt, completion, cached))
    assert shown["total_tokens"] == prompt + completion
    assert shown["prompt_tokens_details"]["cached_tokens"] == cached


def test_completion_details_are_shown_only_if_there_are_any() -> None:
    """Details are shown if the upstream gave them, and left out otherwise."""
    with_details = Usage(9, 3, completion_details={"reasoning_tokens": 2})
    assert msgspec.to_builtins(usage_object(with_details)) == {
        **COUNTS,
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert msgspec.to_builtins(usage_object(Usage(9, 3, completion_details={}))) == COUNTS


def test_an_estimate_is_shown_like_any_count() -> None:
    """The client sees the same fields whether the count is the upstream's or our own."""
    assert msgspec.to_builtins(usage_object(Usage(9, 3, estimated=True))) == COUNTS


def test_completion_ids_are_url_safe_and_unique() -> None:
    """`chatcmpl-` and at least 24 url-safe characters, never the same twice, even within one millisecond."""
    ids = {new_completion_id(NOW_MS) for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"chatcmpl-[A-Za-z0-9_-]{24,}", one) for one in ids)


@given(times_ms, times_ms)
def test_completion_ids_sort_by_time(one_ms: int, other_ms: int) -> None:
    """As text, a later id comes after an earlier one, for centuries, and all have one length."""
    earlier, later = sorted((one_ms, other_ms))
    if earlier < later:
        assert new_completion_id(earlier) < new_completion_id(later)
    assert len(new_completion_id(earlier)) == len(new_completion_id(later))


def test_completion_ids_cannot_be_guessed() -> None:
    """Within one millisecond 24 characters vary over all of the 64 that are url-safe, which is 144 bits."""
    ids = [new_completion_id(NOW_MS) for _ in range(2000)]
    differing = [len(set(characters)) for characters in zip(*ids, strict=True) if len(set(characters)) > 1]
    assert differing == [64] * 24


def test_a_list_of_models_has_the_fields_of_the_schema() -> None:
    """A `list` of `model` objects, each with its id, time and owner."""
    listed = msgspec.json.encode(ModelList(data=[Model(id="forte", created=1)]))
    assert msgspec.json.decode(listed) == {
        "object": "list",
        "data": [{"id": "forte", "object": "model", "created": 1, "owned_by": "cadenza"}],
    }


def test_a_message_with_only_tool_calls_has_no_content() -> None:
    """Its content is null beside the calls; a message without calls has no field for them."""
    call = {"id": "call_x", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    assert msgspec.to_builtins(ReplyMessage(content=None, tool_calls=[call])) == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [call],
    }
    assert "tool_calls" not in msgspec.to_builtins(ReplyMessage(content="Hello"))
