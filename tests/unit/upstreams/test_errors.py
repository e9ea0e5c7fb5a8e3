"""Classifying the errors of upstreams by their words: overflow with its numbers, rate limits, refusals, failures."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.upstreams.base import FaultKind, Overflow
from cadenza.upstreams.errors import ERROR_BYTES_MAX, READ_STATUSES, classify_error, classify_error_object

STATUSES = st.sampled_from([*sorted(READ_STATUSES), 200, 401, 404, 429, 503])
TOO_LONG: list[tuple[str, int | None, int | None]] = [
    # vLLM, SGLang
    (
        (
            "This model's maximum context length is 8192 tokens. However, you requested 512 output tokens "
            "and your prompt contains at least 7681 input tokens, for a total of at least 8193 tokens."
        ),
        8192,
        7681,
    ),
    (
        (
            "This model's maximum context length is 8192 tokens. However, you requested 512 output tokens "
            "and your prompt contains 90000 characters (more than 65536 characters, which is the upper bound"
            " for 8192 input tokens)."
        ),
        8192,
        None,
    ),
    (
        (
            "This model's maximum context length is 8192 tokens. However, you requested 8203 tokens (7691 in"
            " the messages, 512 in the completion). Please reduce the length of the messages or completion."
        ),
        8192,
        7691,
    ),
    ("The input (40000 tokens) is longer than the model's context length (32768 tokens).", 32768, 40000),
    (
        (
            "Requested token count exceeds the model's maximum context length of 32768 tokens. You requested"
            " a total of 40000 tokens: 30000 tokens from the input messages and 10000 tokens for the "
            "completion."
        ),
        32768,
        30000,
    ),
    # llama.cpp, Ollama, TGI, LM Studio
    ("request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it", 8192, 9000),
    ("the request exceeds the available context size, try increasing it", None, None),
    ("Context size has been exceeded.", None, None),
    ("input length (9001 tokens) exceeds the model's maximum context length (8192 tokens)", 8192, 9001),
    (
        (
            "the prompt is longer than the context length currently available to the model; shorten the "
            "prompt, adjust the context length in settings, or use a model with a longer context length"
        ),
        None,
        None,
    ),
    ("prompt too long; exceeded max context length by 4096 tokens", None, None),
    (
        (
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 80125 "
            "`inputs` tokens and 4096 `max_new_tokens`"
        ),
        4097,
        80125,
    ),
    ("Input validation error: `inputs` must have less than 1024 tokens. Given: 1244", 1024, 1244),
    ("Trying to keep the first 9000 tokens when the prompt is greater than the context length of 4096", 4096, None),
    # OpenRouter, Together, Groq, Cerebras
    (
        (
            "This endpoint's maximum context length is 131072 tokens. However, you requested about 141607 "
            "tokens (10535 of text input, 131072 in the output). Please reduce the length of either one."
        ),
        131072,
        10535,
    ),
    (
        (
            "This endpoint's maximum context length is 262144 tokens. However, you requested about 264433 "
            "tokens (188 of text input, 2101 of tool input, 262144 in the output)."
        ),
        262144,
        188,
    ),
    (
        (
            "Failed to start generation: The input token count (11) plus the requested output count "
            "(1048573) exceeds the model's maximum context length (1048576)"
        ),
        1048576,
        11,
    ),
    ("Please reduce the length of the messages or completion.", None, None),
    (
        "Please reduce the length of the messages or completion. Current length is 42328 while limit is 40000",
        40000,
        42328,
    ),
    # Mistral, DeepSeek, Kimi, xAI
    ("Prompt contains 300000 tokens, too large for model with 131072 maximum context length", 131072, 300000),
    (
        (
            "This model's maximum context length is 131072 tokens. However, you requested 131134 tokens "
            "(122942 in the messages, 8192 in the completion). Please reduce the length of the messages or "
            "completion."
        ),
        131072,
        122942,
    ),
    ("Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)", 262144, 269030),
    ("Your request exceeded model token limit : 262144", 262144, None),
    ("Input token length too long", None, None),
    ("This model's maximum prompt length is 131072 but the request contains 537812 tokens.", 131072, 537812),
    # Anthropic, Gemini, OpenAI, Azure
    ("prompt is too long: 211180 tokens > 200000 maximum", 200000, 211180),
    ("input length and `max_tokens` exceed context limit: 195000 + 20000 > 200000, decrease it", 200000, 195000),
    ("The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).", 1048576, 1200293),
    (
        (
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 173172"
            " tokens. Please reduce the length of the messages."
        ),
        128000,
        173172,
    ),
    (
        (
            "This model's maximum context length is 8192 tokens. However, you requested 8213 tokens (6683 in"
            " the messages, 730 in the functions, and 800 in the completion)."
        ),
        8192,
        6683,
    ),
    (
        (
            "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 289650 "
            "tokens. Please reduce the length of the messages."
        ),
        272000,
        289650,
    ),
    ("Your input exceeds the context window of this model. Please adjust your input and try again.", None, None),
    # written with separators
    ("prompt is too long: 211,180 tokens > 200,000 maximum", 200000, 211180),
]
NOT_TOO_LONG = [
    "max_tokens is too large: 943000. This model supports at most 16384 completion tokens, but you provided 943000.",
    "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
    "max_completion_tokens is too large: 999999.This model supports at most 32768 completion tokens.",
    "Unknown parameter: 'stream_options'.",
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    "property 'reasoning' is unsupported",
    "Extra inputs are not permitted",
    "Tool call id was turn1_0 but must be a-z, A-Z, 0-9, with a length of 9.",
    "Content Exists Risk",
    "The request was rejected because it was considered high risk",
    "invalid temperature: only 1 is allowed for this model",
    "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
    "Function call is missing a thought_signature in functionCall parts.",
    "This response_format type is unavailable now",
    "System message must be at the beginning.",
    "Invalid 'user': string too long. Expected a string with maximum length 64, but got a string with length 70.",
]


def body(message: str, **more: Any) -> bytes:
    return json.dumps({"error": {"message": message, **more}}).encode()


@pytest.mark.parametrize(("message", "window_tokens", "prompt_tokens"), TOO_LONG, ids=lambda value: str(value)[:40])
def test_an_overflow_and_its_numbers(message: str, window_tokens: int | None, prompt_tokens: int | None) -> None:
    """Each known sentence is an overflow with the numbers that it tells, in every form of an error body."""
    forms = {
        "OpenAI's": body(message, type="invalid_request_error", code=None),
        "flat": json.dumps({"object": "error", "message": message, "code": 400}).encode(),
        "a string": json.dumps({"error": message}).encode(),
        "a list": json.dumps([{"error": {"code": 400, "message": message}}]).encode(),
        "in a string": body("Provider returned error", metadata={"raw": body(message).decode()}),
        "no JSON": message.encode(),
    }
    for name, data in forms.items():
        for status in (400, 413, 422, 500):
            fault = classify_error(status, None, data)
            assert (fault.kind, fault.status) == (FaultKind.REFUSED, status), name
            assert fault.overflow == Overflow(window_tokens, prompt_tokens), name
            assert message not in str(fault)


@pytest.mark.parametrize("code", ["context_length_exceeded", "exceed_context_size_error"])
def test_a_code_says_overflow(code: str) -> None:
    """The code tells of an overflow if the words do not."""
    assert classify_error(400, None, body("No.", code=code)).overflow == Overflow()


@pytest.mark.parametrize("message", NOT_TOO_LONG, ids=lambda value: value[:40])
def test_other_refusals_are_no_overflow(message: str) -> None:
    """Other words are a refusal with the status alone."""
    fault = classify_error(400, None, body(message))
    assert (fault.kind, fault.overflow) == (FaultKind.REFUSED, None)


@pytest.mark.parametrize(
    ("status", "message", "more"),
    [
        (
            413,
            (
                "Request too large for model `x` on tokens per minute (TPM): Limit 12000, Requested 14137, "
                "please reduce your message size and try again."
            ),
            {"type": "tokens", "code": "rate_limit_exceeded"},
        ),
        (
            429,
            (
                "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 30601. The input "
                "or output tokens must be reduced in order to run successfully."
            ),
            {"type": "tokens", "code": "rate_limit_exceeded"},
        ),
        (429, "Rate limit reached. Please reduce the length of the messages.", {}),
        (429, "Service tier capacity exceeded for this model.", {"code": "3505"}),
        (429, "Resource has been exhausted (e.g. check quota).", {"status": "RESOURCE_EXHAUSTED"}),
        (400, "Rate limit reached", {"code": "rate_limit_exceeded"}),
    ],
)
def test_a_rate_limit_is_not_an_overflow(status: int, message: str, more: dict[str, Any]) -> None:
    """A rate limit is busy, whatever it says about lengths, and keeps its Retry-After."""
    fault = classify_error(status, b"7", body(message, **more))
    assert (fault.kind, fault.status, fault.overflow, fault.retry_after_s) == (FaultKind.BUSY, 429, None, 7.0)


@pytest.mark.parametrize(
    ("status", "data", "kind"),
    [
        (400, body("Failed to call a function.", code="tool_use_failed"), FaultKind.FAILED),
        (403, body("flagged", metadata={"reasons": ["x"], "flagged_input": "x"}), FaultKind.REFUSED),
        (403, body("This key may not use the model."), FaultKind.UNAUTHORIZED),
        (500, body("Failed to parse messages: type must be string, but is null"), FaultKind.REFUSED),
        (500, body("Failed to parse tools: type must be string, but is null"), FaultKind.REFUSED),
        (500, body("Jinja Exception: System message must be at the beginning."), FaultKind.REFUSED),
        (500, body("Compute error."), FaultKind.FAILED),
        (503, body("Loading model, maximum context length is 8192 tokens"), FaultKind.FAILED),
        (400, b"", FaultKind.REFUSED),
        (422, b"\xff\xfe", FaultKind.REFUSED),
    ],
)
def test_the_words_correct_the_status(status: int, data: bytes, kind: FaultKind) -> None:
    """Where an upstream's status is misleading, its words decide; otherwise the status does."""
    fault = classify_error(status, None, data)
    assert (fault.kind, fault.overflow) == (kind, None)


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        ({"message": "no", "status_code": 400}, FaultKind.REFUSED, 400),
        ({"message": "no", "status_code": 400, "code": "tool_use_failed"}, FaultKind.FAILED, 400),
        ({"message": "generation failed", "http_status_code": 422}, FaultKind.FAILED, 500),
        ({"message": "prompt is too long: 9 tokens > 8 maximum"}, FaultKind.REFUSED, 500),
        ({"message": "slow down", "code": "rate_limit_exceeded"}, FaultKind.BUSY, 429),
    ],
)
def test_an_error_object_in_a_stream(error: Any, kind: FaultKind, status: int) -> None:
    """The real status is searched for in the object; TGI's is always 422 and is not believed."""
    fault = classify_error_object(error)
    assert (fault.kind, fault.status) == (kind, status)


@pytest.mark.parametrize("number", ["0", "9" * 400, "1" + "0" * 13, "1,,,", "٣٠"])
def test_odd_numbers_are_no_counts(number: str) -> None:
    """A number that cannot be a count is left out or cut; it is never an error."""
    fault = classify_error(400, None, body(f"This model's maximum context length is {number} tokens."))
    assert fault.overflow
    assert fault.overflow.window_tokens is None or 0 < fault.overflow.window_tokens < 1 << 40


def test_only_the_beginning_of_a_body_is_searched() -> None:
    """Words after the first bytes of a body are not read."""
    fault = classify_error(400, None, b" " * ERROR_BYTES_MAX + body(TOO_LONG[0][0]))
    assert fault.overflow is None


@given(status=STATUSES, data=st.binary(max_size=300))
def test_any_bytes_are_a_fault(status: int, data: bytes) -> None:
    """Random bytes are a fault without their text."""
    assert classify_error(status, None, data).kind in FaultKind


@given(
    status=STATUSES,
    words=st.lists(
        st.sampled_from(["maximum context length is", "messages resulted in", "prompt is too long:", ">", "maximum"])
        | st.text(alphabet="0123456789,.()٣²", max_size=40),
        max_size=12,
    ),
)
def test_any_words_of_overflow_are_a_fault(status: int, words: list[str]) -> None:
    """Known words with any numbers are a fault, and its counts are plausible."""
    overflow = classify_error(status, None, " ".join(words).encode()).overflow or Overflow()
    for count in (overflow.window_tokens, overflow.prompt_tokens):
        assert count is None or 0 < count < 1 << 40


@given(error=st.recursive(st.none() | st.integers() | st.text(max_size=9), lambda inner: st.lists(inner, max_size=3)))
def test_any_error_object_is_a_fault(error: Any) -> None:
    """An error of any type is a fault."""
    for value in (error, {"code": error, "message": error}):
        assert classify_error_object(value).kind in FaultKind
