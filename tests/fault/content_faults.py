"""Faults of content: statuses, bodies that are not completions, errors and garbage within a stream.

One of each way through the service; every form of each is in tests/transcripts/failures.txt and tests/unit/upstreams.
"""

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
)

MIB = 2**20
ERROR = {"error": {"message": SECRET, "type": "server_error", "code": 500}}
ERROR_BODY = json.dumps(ERROR).encode()
HTML = f"<html><body>{SECRET}</body></html>".encode()
BODY = json.dumps(completion(TEXT)).encode()


def garbage(body: bytes, **headers: str) -> Fault:
    """A 200 that is not a completion."""
    return Fault(Status(200, body, headers))


def broken(*events: Any) -> Fault:
    """A stream that is correct at first; a plain request gets a 502."""
    return Fault(Sse([*BEGUN, *events]), stream=BROKEN)


STATUSES: Faults = {
    "status 204": Fault(Status(204)),
    "status 206": Fault(Status(206, BODY)),
    "status 307 to elsewhere": Fault(Status(307, b"", {"location": "/v1/elsewhere"})),
    "status 400": Fault(Status(400, ERROR_BODY), REFUSED, REFUSED),
    "status 500": Fault(Status(500, ERROR_BODY)),
    "status 429": Fault(Status(429, ERROR_BODY), BUSY, BUSY),
    "status 429 whose body never comes": Fault(
        Raw([http_head(429, {"content-length": "1000000", "retry-after": "4"})]),
        Expected(429, retry_after_s=4),
        Expected(429, retry_after_s=4),
    ),
}
BODIES: Faults = {
    "empty": garbage(b""),
    "HTML called a stream": Fault(Status(200, HTML, {"content-type": "text/event-stream"})),
    "two documents": garbage(BODY + BODY),
    "nested deeply": garbage(b'{"choices": ' + b"[" * 100_000),
    "nested deeply and closed": garbage(b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "invalid UTF-8": garbage(BODY.replace(b"there", b"\xff\xfe")),
    "gzip though it was not asked for": Fault(Status(200, gzip.compress(BODY), {"content-encoding": "gzip"})),
    "an error in a 200 beside an answer": Fault(Json({**completion(TEXT), **ERROR})),
}
EVENTS: Faults = {
    "no events": Fault(Sse([], done=False)),
    "the role alone, unfinished": Fault(Sse([ROLE], done=False)),
    "an error after the role": Fault(Sse([ROLE, ERROR])),
    "an error later": broken(ERROR),
    "an error after the finish reason": Fault(Sse([ROLE, said(TEXT), STOP, ERROR]), WHOLE, WHOLE),
    "no JSON later": broken(f"data: {SECRET}\n\n".encode()),
    "nested deeply later": broken(b'data: {"x": ' + b"[" * 100_000 + b"\n\n"),
    "[DONE] without a finish reason": broken(),
    "an event without end": Fault(Endless([SSE_HEAD, framed(b"data: ")], [framed(b"x" * MIB)])),
    "an event without end later": Fault(
        Endless([opened(*BEGUN)], [framed(b"data: " + b"x" * MIB)]),
        stream=BROKEN,
    ),
    "events behind [DONE]": Fault(Sse([*WHOLE_EVENTS, b"data: [DONE]\n\n", said("no"), ERROR]), WHOLE, WHOLE),
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
