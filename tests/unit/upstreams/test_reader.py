"""Decoding the JSON of upstreams: the quirks of all dialects, and a Fault for JSON that is not an answer."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cadenza.core.faults import FaultKind
from cadenza.core.records import Usage
from cadenza.upstreams.base import Fault, Piece
from cadenza.upstreams.reader import COUNT_MAX, read_chunk, read_whole

COUNTS = {"prompt_tokens": 9, "completion_tokens": 3}
THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}  # as Mistral sends it
THOUGHT_EXTRA = {"reasoning_content": "hm"}


def encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def chunk(*choices: Any, **more: Any) -> Piece:
    piece = read_chunk(encode({"id": "x", "choices": list(choices), **more}))
    assert piece is not None
    return piece


def delta(**fields: Any) -> Piece:
    return chunk({"index": 0, "delta": fields})


def usage(**counts: Any) -> Usage | None:
    return chunk(usage=counts).usage


def whole(*choices: Any, **more: Any) -> Piece:
    return read_whole(encode({"id": "x", "choices": list(choices), **more}))


@pytest.mark.parametrize("data", [b"[DONE]", b" [DONE] ", b"[DONE]\n"])
def test_the_terminator_is_not_a_piece(data: bytes) -> None:
    """[DONE], with or without white space around it, ends a stream."""
    assert read_chunk(data) is None


@pytest.mark.parametrize(
    ("fields", "piece"),
    [
        ({"content": "Hi"}, Piece("Hi", has_begun=True)),
        ({"role": "assistant", "content": "Hi"}, Piece("Hi", has_begun=True)),
        ({"role": "assistant", "content": ""}, Piece()),
        ({"role": ""}, Piece()),
        ({"content": None}, Piece()),
        ({}, Piece()),
        ({"content": "音楽 🎼"}, Piece("音楽 🎼", has_begun=True)),
        ({"content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}, Piece("Hi", has_begun=True)),
        ({"content": [{"type": "image"}, "x", None, {"text": 7}, {"text": "Hi"}]}, Piece("Hi", has_begun=True)),
        ({"content": 7}, Piece()),
        ({"content": {"text": "no"}}, Piece()),
        ({"content": "Hi", "x_vendor": [1, {"y": None}]}, Piece("Hi", has_begun=True)),
        ({"reasoning_content": "hm"}, Piece(has_begun=True, extras={"reasoning_content": "hm"})),
        ({"reasoning": "hm"}, Piece(has_begun=True, extras={"reasoning": "hm"})),
        ({"reasoning_details": [{"type": "x"}]}, Piece(has_begun=True, extras={"reasoning_details": [{"type": "x"}]})),
        ({"refusal": "No.", "content": None}, Piece(has_begun=True, extras={"refusal": "No."})),
        ({"reasoning": "hm", "content": "Hi"}, Piece("Hi", has_begun=True, extras={"reasoning": "hm"})),
        ({"content": [THOUGHT, {"type": "text", "text": "Hi"}]}, Piece("Hi", has_begun=True, extras=THOUGHT_EXTRA)),
        ({"reasoning_content": "", "reasoning": None, "refusal": None, "reasoning_details": []}, Piece()),
        ({"reasoning_content": 7, "reasoning": ["hm"], "refusal": {}, "reasoning_details": "x"}, Piece()),
        ({"tool_calls": []}, Piece()),
    ],
    ids=str,
)
def test_the_piece_of_a_delta(fields: dict[str, Any], piece: Piece) -> None:
    """Text in any form is content; reasoning begins the answer but is not content; other fields are ignored."""
    assert delta(**fields) == piece


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"choices": []},
        {"choices": None},
        {"choices": [{}]},
        {"choices": [{"index": 0, "delta": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": ""}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": 7}]},
        {"choices": [], "usage": None},
        {"choices": [], "usage": {}},
        {"choices": [], "error": None},
        {"id": 7, "created": 1.5, "model": None, "object": []},
    ],
    ids=str,
)
def test_a_chunk_without_an_answer_is_an_empty_piece(document: dict[str, Any]) -> None:
    """Absent, null and empty fields are not a fault."""
    assert read_chunk(encode(document)) == Piece()


@pytest.mark.parametrize("index", [0, None, "absent"])
def test_the_first_choice_counts(index: Any) -> None:
    """The choice with index 0, null or no index is read; other choices are ignored."""
    first = {"delta": {"content": "yes"}} | ({} if index == "absent" else {"index": index})
    other = {"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}
    assert chunk(first, other) == chunk(other, first) == Piece("yes", has_begun=True)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (COUNTS, Usage(9, 3)),
        ({**COUNTS, "total_tokens": 12, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(9, 3, 4)),
        ({**COUNTS, "prompt_cache_hit_tokens": 5}, Usage(9, 3, 5)),
        ({**COUNTS, "prompt_tokens_details": None}, Usage(9, 3)),
        ({**COUNTS, "prompt_tokens_details": {"cached_tokens": None}}, Usage(9, 3)),
        ({**COUNTS, "prompt_tokens_details": [1]}, Usage(9, 3)),
        ({**COUNTS, "prompt_tokens_details": {"cached_tokens": 99}}, Usage(9, 3, 9)),
        ({**COUNTS, "prompt_tokens_details": {"cached_tokens": -1}}, Usage(9, 3)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, Usage(0, 0)),
        (
            {**COUNTS, "completion_tokens_details": {"reasoning_tokens": 2, "x": 1, "audio_tokens": None}},
            Usage(9, 3, completion_details={"reasoning_tokens": 2}),
        ),
        ({**COUNTS, "completion_tokens_details": {"x": 1}}, Usage(9, 3)),
        ({**COUNTS, "completion_tokens_details": "many"}, Usage(9, 3)),
        ({"prompt_tokens": COUNT_MAX - 1, "completion_tokens": 1}, Usage(COUNT_MAX - 1, 1)),
        ({"prompt_tokens": 9}, None),
        ({"completion_tokens": 3}, None),
        ({"prompt_tokens": None, "completion_tokens": 3}, None),
        ({"prompt_tokens": -9, "completion_tokens": 3}, None),
        ({"prompt_tokens": True, "completion_tokens": 3}, None),
        ({"prompt_tokens": "9", "completion_tokens": 3}, None),
        ({"prompt_tokens": 9.5, "completion_tokens": 3}, None),
        ({"prompt_tokens": COUNT_MAX, "completion_tokens": 3}, None),
    ],
    ids=str,
)
def test_plausible_counts_are_read(counts: dict[str, Any], expected: Usage | None) -> None:
    """Zero is a count; a missing, negative, huge or non-integer count is not; cached tokens are part of the prompt."""
    assert usage(**counts) == expected


def test_a_json_body_is_one_finished_piece() -> None:
    """Message, finish reason and usage of a non-streaming reply are all read."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "length"}
    assert whole(choice, usage=COUNTS) == Piece("Hi", finish_reason="length", usage=Usage(9, 3), has_begun=True)


@pytest.mark.parametrize("reason", [None, "", 7, "absent"])
def test_a_json_body_without_a_finish_reason_has_stopped(reason: Any) -> None:
    """A complete JSON body without a valid finish reason counts as `stop`."""
    choice = {"message": {"content": "Hi"}} | ({} if reason == "absent" else {"finish_reason": reason})
    assert whole(choice).finish_reason == "stop"


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"choices": []},
        {"choices": None},
        {"choices": [{"index": 0, "finish_reason": "stop"}]},
        {"choices": [{"index": 0, "message": None}]},
        {"choices": [{"index": 0, "delta": {"content": "Hi"}}]},
        {"object": "chat.completion"},
        {"detail": "Not Found"},
    ],
    ids=str,
)
def test_a_json_body_without_a_message_is_malformed(document: dict[str, Any]) -> None:
    """A non-streaming reply must have a message."""
    with pytest.raises(Fault) as fault:
        read_whole(encode(document))
    assert fault.value.kind is FaultKind.MALFORMED


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"7",
        b'"Hi"',
        b"<html><body>502</body></html>",
        b'{"choices":[{"delta":{"content":"Hi"}}]',
        b'{"choices":[{"delta":{"content":"\xff"}}]}',
        b'{"choices":[{"delta":{"content":"\\ud800"}}]}',
        b'[{"error":{"code":503,"message":"The model is overloaded."}}]',
        b'{"choices":{}}',
        b'{"choices":[null]}',
        b'{"choices":[{"delta":"Hi"}]}',
        b'{"x":' * 100_000,
        b"[DONE] and more",
    ],
    ids=lambda data: data[:40],
)
def test_data_that_is_not_an_answer_is_malformed(data: bytes) -> None:
    """HTML, truncated JSON, invalid UTF-8, deep nesting and the like are faults, in a stream and in a JSON body."""
    for read in (read_chunk, read_whole):
        with pytest.raises(Fault) as fault:
            read(data)
        assert fault.value.kind is FaultKind.MALFORMED


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        ("overloaded", FaultKind.FAILED, 500),
        ({"message": "no"}, FaultKind.FAILED, 500),
        ({"message": "no", "code": None}, FaultKind.FAILED, 500),
        ({"code": "server_error"}, FaultKind.FAILED, 500),
        ({"code": True}, FaultKind.FAILED, 500),
        ({"code": 429}, FaultKind.BUSY, 429),
        ({"code": "429"}, FaultKind.BUSY, 429),
        ({"status": 429}, FaultKind.BUSY, 429),
        ({"code": 400}, FaultKind.INVALID, 400),
        ({"code": 413}, FaultKind.INVALID, 413),
        ({"code": 422}, FaultKind.INVALID, 422),
        ({"code": 401}, FaultKind.UNAUTHORIZED, 401),
        ({"code": 503}, FaultKind.FAILED, 503),
        ([{"code": 429}], FaultKind.FAILED, 500),
        ({"object": "error", "message": "aborted", "type": "InternalServerError", "code": 500}, FaultKind.FAILED, 500),
    ],
    ids=str,
)
def test_an_error_inside_a_200_is_classified_by_its_code(error: Any, kind: FaultKind, status: int) -> None:
    """Some upstreams answer 200 and put the real status into the body or the event."""
    data = encode({"error": error, "choices": [{"message": {"content": "Hi"}}]})
    for read in (read_chunk, read_whole):
        with pytest.raises(Fault) as fault:
            read(data)
        assert (fault.value.kind, fault.value.status) == (kind, status)


@pytest.mark.parametrize(
    "document",
    [
        {"object": "error", "message": "Internal server error", "type": "internal", "code": "3700"},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "insufficient_system_resource"}]},
        {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "native_finish_reason": "network_error"}]},
    ],
    ids=["an older vLLM's, and Mistral's", "DeepSeek's", "OpenRouter's", "OpenRouter's other one"],
)
def test_a_failure_without_an_error_object(document: dict[str, Any]) -> None:
    """Some upstreams say in another way that a reply failed."""
    with pytest.raises(Fault) as fault:
        read_chunk(encode(document))
    assert fault.value.kind is FaultKind.FAILED


def test_a_reply_that_filled_the_window_was_cut() -> None:
    """Mistral's `model_length` is `length`."""
    assert whole({"message": {"content": "Hello"}, "finish_reason": "model_length"}).finish_reason == "length"


def test_a_fault_has_no_text_of_the_upstream() -> None:
    """A fault has no text of the upstream in its message or in the exception that caused it."""
    error = encode({"error": {"message": "s3cret", "code": "s3cret"}})
    for data in (error, b'{"s3cret', b'{"choices":"s3cret"}'):
        with pytest.raises(Fault) as fault:
            read_chunk(data)
        assert "s3cret" not in repr(fault.value) + str(fault.value)
        assert fault.value.__cause__ is None
        assert fault.value.__suppress_context__ or fault.value.__context__ is None


def check_result(data: bytes) -> None:
    """Any bytes are a piece, the terminator or a fault."""
    for read in (read_chunk, read_whole):
        try:
            piece = read(data)
        except Fault:
            continue
        assert isinstance(piece, Piece) or (piece is None and data.strip() == b"[DONE]")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
calls = st.fixed_dictionaries(
    {},
    optional={
        "index": json_values,
        "id": json_values,
        "function": st.fixed_dictionaries({}, optional={"name": json_values, "arguments": json_values}) | json_values,
    },
)
deltas = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("role", "content", "reasoning_content", "reasoning", "function_call"), json_values)
    | {"tool_calls": st.lists(calls | json_values, max_size=3) | json_values},
)
choices = st.fixed_dictionaries(
    {},
    optional={
        "index": st.just(0) | json_values,
        "delta": deltas | json_values,
        "message": deltas | json_values,
        "finish_reason": st.just("stop") | json_values,
    },
)
counts = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("prompt_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details"), json_values
    ),
)
errors = st.fixed_dictionaries(
    {}, optional={"code": st.integers(0, 999).map(str) | json_values, "status": json_values, "message": st.text()}
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(choices | json_values, max_size=3) | json_values,
        "usage": counts | json_values,
        "error": st.none() | errors | json_values,
    },
)


@given(st.integers(0, 120), st.integers(0, 9), st.binary(max_size=6))
def test_any_damaged_chunk_is_a_piece_or_a_fault(place: int, removed: int, added: bytes) -> None:
    """A valid chunk with some bytes removed and others inserted is a piece or a fault."""
    good = encode({"choices": [{"index": 0, "delta": {"content": "音楽"}, "finish_reason": "stop"}], "usage": COUNTS})
    check_result(good[:place] + added + good[place + removed :])


@given(documents)
@example({"choices": [{"index": [], "delta": {"content": "Hi"}}]})
@example({"choices": [{"index": {"a": 1}, "message": {"content": "Hi"}}]})
@example({"error": {"code": "²"}})
@example({"error": {"code": "9" * 5000}})
def test_any_json_is_a_piece_or_a_fault(value: dict[str, Any]) -> None:
    """Fields of any type and shape make a piece or a fault."""
    check_result(encode(value))
