"""Faults of content: every status, bodies that are not completions, errors and garbage within a stream."""

import gzip
import json
from typing import Any

from tests.fault.faults import (
    BEGUN,
    BOUNDED,
    BROKEN,
    BUSY,
    OPEN_JSON,
    REFUSED,
    SECRET,
    TEXT,
    WHOLE,
    WHOLE_EVENTS,
    Expected,
    Fault,
    Faults,
    opened,
)
from tests.loopback import (
    ROLE,
    SSE_HEAD,
    STOP,
    Endless,
    Json,
    Raw,
    Sse,
    Status,
    completion,
    framed,
    http_head,
    said,
    sse_event,
    usage_chunk,
)

MIB = 2**20
ERROR = {"error": {"message": SECRET, "type": "server_error", "code": 500}}
ERROR_BODY = json.dumps(ERROR).encode()
HTML = f"<html><body>{SECRET}</body></html>".encode()
BODY = json.dumps(completion(TEXT)).encode()
GZIP_HEAD = {"content-encoding": "gzip"}
ELSEWHERE = {"location": "/v1/elsewhere"}
FAILING = (401, 402, 403, 404, 408, 418, 500, 502, 503, 504, 529, 599)


def busy(retry_after: str, told_s: int) -> Fault:
    expected = Expected(429, retry_after_s=told_s)
    return Fault(Status(429, ERROR_BODY, {"retry-after": retry_after}), expected, expected)


def coded(code: Any) -> dict[str, Any]:
    return {"error": {"message": SECRET, "code": code}}


def garbage(body: bytes, **headers: str) -> Fault:
    """A 200 that is not a completion."""
    return Fault(Status(200, body, headers))


def broken(*events: Any) -> Fault:
    """A stream that is correct at first; a plain request gets a 502."""
    return Fault(Sse([*BEGUN, *events]), stream=BROKEN)


STATUSES: Faults = {
    **{f"status {status}": Fault(Status(status, ERROR_BODY)) for status in FAILING},
    **{f"status {status}": Fault(Status(status, ERROR_BODY), REFUSED, REFUSED) for status in (400, 413, 422)},
    **{f"status {status} to elsewhere": Fault(Status(status, b"", ELSEWHERE)) for status in (301, 302, 307, 308)},
    "status 204": Fault(Status(204)),
    "status 206": Fault(Status(206, BODY)),
    "status 304": Fault(Status(304)),
    "status 503 with Retry-After": Fault(Status(503, ERROR_BODY, {"retry-after": "3"})),
    "status 529 with Retry-After": Fault(Status(529, ERROR_BODY, {"retry-after": "3"})),
    "status 429": Fault(Status(429, ERROR_BODY), BUSY, BUSY),
    "status 429 with Retry-After": busy("7", 7),
    "status 429 with a Retry-After of parts": busy("1.5", 2),
    "status 429 with a Retry-After of zero": busy("0", 1),
    "status 429 with a Retry-After in the past": busy("-5", 1),
    "status 429 with a Retry-After of words": busy("soon", 2),
    "status 429 with a Retry-After of no number": busy("nan", 2),
    "status 429 with a Retry-After of years": busy("1e9", 60),
    "status 429 whose body never comes": Fault(
        Raw([http_head(429, {"content-length": "1000000", "retry-after": "4"})]),
        Expected(429, retry_after_s=4),
        Expected(429, retry_after_s=4),
    ),
}
BODIES: Faults = {
    "empty": garbage(b""),
    "spaces": garbage(b" \n" * 100),
    "HTML": Fault(Status(200, HTML, {"content-type": "text/html"})),
    "HTML called JSON": garbage(HTML),
    "HTML called a stream": Fault(Status(200, HTML, {"content-type": "text/event-stream"})),
    "truncated JSON": garbage(BODY[:-9]),
    "two documents": garbage(BODY + BODY),
    "no choices": Fault(Json({"object": "chat.completion"})),
    "choices null": Fault(Json({"choices": None})),
    "choices empty": Fault(Json({"choices": []})),
    "choices of another type": Fault(Json({"choices": SECRET})),
    "a choice of another type": Fault(Json({"choices": [7]})),
    "a message of another type": Fault(Json({"choices": [{"index": 0, "message": SECRET}]})),
    "a choice without a message": Fault(Json({"choices": [{"index": 0, "finish_reason": "stop"}]})),
    "a list": Fault(Json([1, 2])),
    "null": garbage(b"null"),
    "NaN": garbage(BODY.replace(b'"index": 0', b'"index": NaN')),
    "nested deeply": garbage(b'{"choices": ' + b"[" * 100_000),
    "nested deeply and closed": garbage(b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "invalid UTF-8": garbage(BODY.replace(b"there", b"\xff\xfe")),
    "gzip though it was not asked for": Fault(Status(200, gzip.compress(BODY), GZIP_HEAD)),
    "an error in a 200": Fault(Json(ERROR)),
    "an error in a 200, as a string": Fault(Json({"error": SECRET})),
    "an error in a 200 beside an answer": Fault(Json({**completion(TEXT), **ERROR})),
    "an error in a 200, coded 429": Fault(Json(coded(429)), BUSY, BUSY),
    "an error in a 200, coded 400": Fault(Json(coded("400")), REFUSED, REFUSED),
    "an error in a 200, coded in words": Fault(Json(coded("context_length_exceeded")), REFUSED, REFUSED),
    "an error in a 200, coded in other words": Fault(Json(coded("server_error"))),
}
EVENTS: Faults = {
    "no events": Fault(Sse([], done=False)),
    "[DONE] alone": Fault(Sse([])),
    "the role alone": Fault(Sse([ROLE])),
    "the role alone, unfinished": Fault(Sse([ROLE], done=False)),
    "counts alone": Fault(Sse([usage_chunk({"prompt_tokens": 1, "completion_tokens": 1})])),
    "an error first": Fault(Sse([ERROR])),
    "an error after the role": Fault(Sse([ROLE, ERROR])),
    "an error first, coded 429": Fault(Sse([coded(429)]), BUSY, BUSY),
    "an error first, coded 400": Fault(Sse([coded(400)]), REFUSED, REFUSED),
    "an error later": broken(ERROR),
    "an error later, as a string": broken({"error": SECRET}),
    "an error later, coded 429": Fault(Sse([*BEGUN, coded(429)]), BROKEN, BUSY),
    "an error after the finish reason": Fault(Sse([ROLE, said(TEXT), STOP, ERROR]), WHOLE, WHOLE),
    "no JSON first": Fault(Sse([f"data: {SECRET}\n\n".encode()])),
    "no JSON later": broken(f"data: {SECRET}\n\n".encode()),
    "truncated JSON later": broken(b'data: {"choices": [{"delta": {"content": "wo\n\n'),
    "NaN later": broken(b'data: {"choices": NaN}\n\n'),
    "invalid UTF-8 later": broken(sse_event(said("words")).replace(b"words", b"\xff\xfe")),
    "nested deeply later": broken(b'data: {"x": ' + b"[" * 100_000 + b"\n\n"),
    "wrong types later": broken({"choices": [{"delta": SECRET}]}),
    "[DONE] without a finish reason": broken(),
    "an end without a finish reason": Fault(Sse(BEGUN, done=False), stream=BROKEN),
    "an event without end": Fault(Endless([SSE_HEAD, framed(b"data: ")], [framed(b"x" * MIB)])),
    "an event without end later": Fault(
        Endless([opened(*BEGUN)], [framed(b"data: " + b"x" * MIB)]),
        stream=BROKEN,
    ),
    "events behind [DONE]": Fault(Sse([*WHOLE_EVENTS, b"data: [DONE]\n\n", said("no"), ERROR]), WHOLE, WHOLE),
    "words behind the finish reason": Fault(Sse([ROLE, said(TEXT), STOP, b": more\n\n"]), WHOLE, WHOLE),
}


ENDLESS: Faults = {
    "words without end": Fault(
        Endless([opened(*BEGUN)], [framed(sse_event(said(" again")))]),
        Expected(200, None, is_broken=True),
        class_id=BOUNDED,
    ),
    "JSON without end": Fault(Endless([OPEN_JSON, b'{"x": "'], [b"x" * MIB])),
    "spaces without end": Fault(Endless([OPEN_JSON], [b" \n" * (MIB // 2)])),
}
CONTENT: Faults = {**STATUSES, **BODIES, **EVENTS, **ENDLESS}
