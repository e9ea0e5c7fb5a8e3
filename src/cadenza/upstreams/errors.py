"""Classifies the errors of upstreams: by status, and by their words if the status is not enough.

Of the words only numbers are kept. An error with unknown words is classified by its status alone.
"""

import math
import re

import msgspec

from cadenza.core.faults import FaultKind
from cadenza.upstreams.base import Fault, Overflow

RETRY_AFTER_S_MAX = 60.0
ERROR_BYTES_MAX = 16 * 1024  # of an error body that are searched
READ_STATUSES = frozenset({400, 403, 413, 422, 429, 500})  # whose body is read
TOKENS_MAX = 1 << 40

STATUS = re.compile(r"[45][0-9]{2}", re.ASCII)
# Groq refuses a request beyond its rate limit with 413, and one whose call the model got wrong with 400.
RATE_LIMIT = "rate_limit_exceeded"
NO_QUOTA = "insufficient_quota"  # OpenAI answers 429
MODEL_FAILED = "tool_use_failed"
FLAGGED = '"flagged_input"'  # OpenRouter's moderation answers 403
# llama.cpp answers 500 to messages and tools that it cannot parse, and to those that the chat template refuses.
REFUSED_WITH_500 = re.compile("failed to parse (?:messages|tools|tool call arguments)|jinja exception")

TOO_LONG = re.compile(
    r"context[_ ]length[_ ]exceeded|exceed_context_size|context size has been exceeded"
    r"|maximum (?:context|prompt) length|(?:model's|available|than the|this) context (?:length|size|window)"
    r"|exceeds? the context|context window (?:exceeds|exceeded)|exceeds? (?:the )?context limit"
    r"|(?:prompt|input) (?:is )?too long|input token length|input token count|input tokens exceed"
    r"|model token limit|too large for model with|length of the messages|inputs` (?:tokens|must have less)"
)
_NUMBER = r"(\d[\d,]*+)"
WINDOW = [
    re.compile(pattern)
    for pattern in (
        rf"maximum (?:context|prompt) length(?: is| of)?(?: only)? \(?{_NUMBER}",
        rf"context (?:length|size|window)(?: is| of)? \(?{_NUMBER}",
        rf"model with {_NUMBER} maximum context",
        rf"> {_NUMBER} maximum",
        rf"tokens allowed \({_NUMBER}",
        rf"(?:token limit ?:|configured limit of|limit is) {_NUMBER}",
        rf"must (?:be <=|have less than) {_NUMBER}",
        rf"exceed context limit: [\d,]+ \+ [\d,]+ > {_NUMBER}",
    )
]
PROMPT = [
    re.compile(pattern)
    for pattern in (
        rf"\(?{_NUMBER} (?:in|tokens from) the (?:input )?messages",
        rf"(?:messages resulted in|prompt contains(?: at least)?|prompt has|current length is) {_NUMBER}(?! char)",
        rf"\({_NUMBER} of text input",
        rf"(?:input|input length|request|request contains) \(?{_NUMBER}",
        rf"token count \({_NUMBER}",
        rf"too long: {_NUMBER}",
        rf"\(requested: {_NUMBER}",
        rf"given: {_NUMBER}",
        rf"exceed context limit: {_NUMBER}",
        rf"you requested(?: about)? {_NUMBER} tokens",
    )
]


def classify_status(status: int, retry_after: bytes | None = None, text: str = "") -> Fault:
    """The fault for a status other than 200. The text of a 429 says whether waiting helps."""
    if status == 402 or (status == 429 and NO_QUOTA in text):
        return Fault(FaultKind.QUOTA, status)
    if status == 429:
        return Fault(FaultKind.BUSY, status, _seconds(retry_after))
    if status in {400, 413, 422}:
        return Fault(FaultKind.INVALID, status)
    if status in {401, 403}:
        return Fault(FaultKind.UNAUTHORIZED, status)
    if status == 404:
        return Fault(FaultKind.NOT_FOUND, status)
    return Fault(FaultKind.FAILED, status, _seconds(retry_after) if status in {503, 529} else None)


def classify_error(status: int, retry_after: bytes | None, body: bytes) -> Fault:
    """The fault for a response whose status is an error."""
    text = body[:ERROR_BYTES_MAX].decode(errors="replace").lower()
    if status == 429 or status not in READ_STATUSES:
        return classify_status(status, retry_after, text)
    if RATE_LIMIT in text:
        return classify_status(429, retry_after)
    if MODEL_FAILED in text:
        return Fault(FaultKind.FAILED, status)
    if TOO_LONG.search(text):
        overflow = Overflow(_first_number(WINDOW, text), _first_number(PROMPT, text))
        return Fault(FaultKind.INVALID, status, overflow=overflow)
    if FLAGGED in text or REFUSED_WITH_500.search(text):
        return Fault(FaultKind.INVALID, status)
    return classify_status(status, retry_after)


def classify_error_object(error: object) -> Fault:
    """The fault for an error object in a response with status 200. Some upstreams put the real status into it."""
    given = error if isinstance(error, dict) else {}
    codes = [str(given.get(name)) for name in ("code", "status", "status_code")]
    status = next((int(code) for code in codes if STATUS.fullmatch(code)), 500)
    return classify_error(status, None, msgspec.json.encode(error))


def _first_number(patterns: list[re.Pattern[str]], text: str) -> int | None:
    for pattern in patterns:
        if match := pattern.search(text):
            number = int(match[1].replace(",", "")[:15])
            return number if 0 < number < TOKENS_MAX else None
    return None


def _seconds(retry_after: bytes | None) -> float | None:
    try:
        wait_s = float(retry_after or b"")
    except ValueError:
        return None
    return min(max(wait_s, 0.0), RETRY_AFTER_S_MAX) if math.isfinite(wait_s) else None
