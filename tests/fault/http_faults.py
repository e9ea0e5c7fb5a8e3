"""Faults of HTTP: connections that end at every phase of a reply, and messages that are malformed or odd.

More that is malformed is in tests/unit/http/test_client.py.
"""

import json

from tests.fault.faults import (
    BEGUN,
    BROKEN,
    HURRIED,
    SSE_BARE_HEAD,
    TEXT,
    WHOLE,
    WHOLE_EVENTS,
    Fault,
    Faults,
    body_of,
    unended,
)
from tests.loopback import (
    ROLE,
    SSE_HEAD,
    STOP,
    ByMode,
    Close,
    Cut,
    Dribble,
    Endless,
    Json,
    Raw,
    Reply,
    Reset,
    Sse,
    Status,
    Wait,
    completion,
    framed,
    said,
)

OK = b"HTTP/1.1 200 OK\r\n"
JSON_TYPE = b"content-type: application/json\r\n"
BODY = json.dumps(completion(TEXT)).encode()
STREAM = body_of(*WHOLE_EVENTS, b"data: [DONE]\n\n")
LENGTH = b"content-length: %d\r\n" % len(BODY)
SOUND = ByMode(Sse(WHOLE_EVENTS), Json(completion(TEXT)))


def ending(end: Reset) -> Faults:
    """The connection ends at every phase."""
    body = Status(200, BODY)
    return {
        "reset without a byte": Fault(Raw([end])),
        "reset within the status line": Fault(Raw([b"HTTP/1.1 20", end])),
        "reset within the headers": Fault(Raw([OK + b"content-ty", end])),
        "reset after the headers": Fault(ByMode(Raw([SSE_HEAD, end]), Cut(body, 0, end))),
        "reset within the first word": Fault(ByMode(unended(b'data: {"choices": [{"del', end), Cut(body, 40, end))),
        "reset before the last byte of JSON": Fault(Cut(body, len(BODY) - 1, end)),
        "reset after the role": Fault(unended(ROLE, end)),
        "reset between two events": Fault(unended(*BEGUN, end), stream=BROKEN),
        "reset within a later event": Fault(unended(*BEGUN, b'data: {"choices": [{"delta', end), stream=BROKEN),
        "reset within an HTTP chunk": Fault(
            Raw([SSE_HEAD, framed(body_of(*BEGUN)), b"ff\r\ndata: {", end]), stream=BROKEN
        ),
        "reset after the finish reason": Fault(unended(ROLE, said(TEXT), STOP, end), WHOLE, WHOLE),
        "reset after [DONE]": Fault(unended(*WHOLE_EVENTS, b"data: [DONE]\n\n", end), WHOLE, WHOLE),
    }


def garbled(*steps: bytes) -> Fault:
    """Malformed bytes, after which the upstream waits for the next request."""
    return Fault(Raw(steps))


def unframed(head: bytes, *behind: bytes) -> Reply:
    """A body that ends with the connection, in either mode."""
    return ByMode(
        Raw([head + b"content-type: text/event-stream\r\n\r\n", STREAM, *behind, Close()]),
        Raw([head + JSON_TYPE + b"\r\n", BODY, *behind, Close()]),
    )


def sound(reply: Reply) -> Fault:
    """Odd, but correct."""
    return Fault(reply, WHOLE, WHOLE)


LENGTHS: Faults = {
    "content-length too long": Fault(Raw([OK + JSON_TYPE + b"content-length: 9999\r\n\r\n", BODY, Close()])),
    "content-length too long, then silence": Fault(
        Raw([OK + JSON_TYPE + b"content-length: 9999\r\n\r\n", BODY, Wait()]), class_id=HURRIED
    ),
    "content-length too short": garbled(OK + JSON_TYPE + b"content-length: 40\r\n\r\n", BODY),
    "content-length of a stream too short": Fault(
        Raw(
            [
                OK + b"content-type: text/event-stream\r\n" + b"content-length: %d\r\n\r\n" % len(body_of(*BEGUN)),
                body_of(*BEGUN, STOP),
            ]
        ),
        stream=BROKEN,
    ),
    "a later chunk size that is no number": Fault(Raw([SSE_HEAD, framed(body_of(*BEGUN)), b"zz\r\n"]), stream=BROKEN),
    "a chunk size beyond counting": garbled(SSE_HEAD, b"fffffffffffffffffff\r\n", body_of(*BEGUN)),
    "a chunk longer than its size": Fault(
        Raw([SSE_HEAD, b"%x\r\n" % len(body_of(*BEGUN)), body_of(*BEGUN), b"more and more\r\n"]),
        stream=BROKEN,
    ),
    "a chunk of a gigabyte, cut": Fault(Raw([SSE_HEAD, b"40000000\r\n", body_of(*BEGUN), Close()]), stream=BROKEN),
    "chunk extensions without end": Fault(Endless([SSE_HEAD, b"5;"], [b"a=b;" * 1000])),
    "trailers without end": Fault(Endless([SSE_HEAD, b"0\r\n"], [b"x-late: 1\r\n" * 100])),
}
MESSAGES: Faults = {
    "HTTP/0.9": garbled(BODY),
    "headers without end": Fault(Endless([OK], [b"x-more: and more\r\n" * 50])),
    "a header of 100 KiB": garbled(OK + b"x-large: " + b"x" * 102_400 + b"\r\n" + JSON_TYPE + LENGTH + b"\r\n" + BODY),
    "a header name without end": Fault(Endless([OK], [b"x" * 4096])),
    "interim answers without end": Fault(Endless([], [b"HTTP/1.1 100 Continue\r\n\r\n" * 50])),
    "line ends without end": Fault(Endless([], [b"\r\n" * 500])),
    "an offer to change the protocol": sound(unframed(OK + b"upgrade: h2c\r\nconnection: upgrade\r\n")),
    "a body that ends with its connection": sound(unframed(OK)),
    "bytes behind the end": sound(Raw([OK + JSON_TYPE + LENGTH + b"\r\n", BODY + b"more that nobody asked for"])),
    "a second answer, unasked": sound(Raw([(OK + JSON_TYPE + LENGTH + b"\r\n" + BODY) * 2])),
    "one byte at a time": sound(Dribble(SOUND)),
    "HTTP chunks of one byte": sound(Sse(WHOLE_EVENTS, piece_bytes=1)),
    "a stream without chunks, reset": Fault(Raw([SSE_BARE_HEAD, body_of(*BEGUN), Reset()]), stream=BROKEN),
    "JSON for a stream": sound(Json(completion(TEXT))),
    "a stream for JSON": sound(Sse(WHOLE_EVENTS)),
}
HTTP: Faults = {**ending(Reset()), **LENGTHS, **MESSAGES}
