"""Classifying the errors of upstreams by their words: overflow with its numbers, rate limits, refusals, failures."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.faults import FaultKind
from cadenza.upstreams.base import Overflow
from cadenza.upstreams.errors import ERROR_BYTES_MAX, READ_STATUSES, classify_error, classify_error_object

STATUSES = st.sampled_from([*sorted(READ_STATUSES), 200, 401, 404, 429, 503])
WORDS = [line.split(" ", 2) for line in Path(__file__).with_name("errors.txt").read_text().splitlines() if line]
TOO_LONG = [
    (message, None if window == "-" else int(window), None if prompt == "-" else int(prompt))
    for window, prompt, message in WORDS
    if window not in ("#", "no")
]
NOT_TOO_LONG = [" ".join(words) for first, *words in WORDS if first == "no"]


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
            assert (fault.kind, fault.status) == (FaultKind.INVALID, status), name
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
    assert (fault.kind, fault.overflow) == (FaultKind.INVALID, None)


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
        (403, body("flagged", metadata={"reasons": ["x"], "flagged_input": "x"}), FaultKind.INVALID),
        (403, body("This key may not use the model."), FaultKind.UNAUTHORIZED),
        (500, body("Failed to parse messages: type must be string, but is null"), FaultKind.INVALID),
        (500, body("Failed to parse tools: type must be string, but is null"), FaultKind.INVALID),
        (500, body("Jinja Exception: System message must be at the beginning."), FaultKind.INVALID),
        (500, body("Compute error."), FaultKind.FAILED),
        (402, body("Insufficient Balance"), FaultKind.QUOTA),
        (429, body("You exceeded your current quota.", type="insufficient_quota"), FaultKind.QUOTA),
        (400, body("Invalid message: what is insufficient_quota?"), FaultKind.INVALID),
        (503, body("Loading model, maximum context length is 8192 tokens"), FaultKind.FAILED),
        (400, b"", FaultKind.INVALID),
        (422, b"\xff\xfe", FaultKind.INVALID),
    ],
)
def test_the_words_correct_the_status(status: int, data: bytes, kind: FaultKind) -> None:
    """Where an upstream's status is misleading, its words decide; otherwise the status does."""
    fault = classify_error(status, None, data)
    assert (fault.kind, fault.overflow) == (kind, None)


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        ({"message": "no", "status_code": 400}, FaultKind.INVALID, 400),
        ({"message": "no", "status_code": 400, "code": "tool_use_failed"}, FaultKind.FAILED, 400),
        ({"message": "generation failed", "http_status_code": 422}, FaultKind.FAILED, 500),
        ({"message": "prompt is too long: 9 tokens > 8 maximum"}, FaultKind.INVALID, 500),
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


def test_every_kind_is_documented() -> None:
    """The page on upstreams lists each kind of fault, once and in the order of the code."""
    page = (Path(__file__).parents[3] / "docs" / "upstreams.md").read_text()
    rows = page.partition("| kind | what happened |")[2]
    found = re.findall(r"^\| `([a-z_]+)` \| [^|]+ \| ([^|]+) \|$", rows, re.MULTILINE)
    assert found == [(kind.value, kind.advice) for kind in FaultKind]
    assert all(kind.words for kind in FaultKind)
