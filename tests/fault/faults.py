"""The list of upstream faults: what the upstream does, and what the client must see, streaming and plain.

A fault is data. Its reply breaks HTTP (http_faults.py), content (content_faults.py) or timing (timing_faults.py); its
class decides how long the service waits (rig.py). Replies that are odd but correct are listed too: they must be served
whole.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tests.loopback import ROLE, SSE_HEAD, STOP, Event, Reply, Sse, framed, http_head, said, sse_event, usage_chunk

EventData = dict[str, Any] | bytes

SECRET = "upstream-secret-74"
TEXT = "All that there was to say."
HALF = "half a word"
USAGE_CHUNK = usage_chunk()
BEGUN = (ROLE, said("half "), said("a word"))
WHOLE_EVENTS = (ROLE, said(TEXT[:9]), said(TEXT[9:]), STOP, USAGE_CHUNK)
OPEN_JSON = http_head(200, {"content-type": "application/json", "connection": "close"})
SSE_BARE_HEAD = http_head(200, {"content-type": "text/event-stream", "connection": "close"})

PATIENT = "forte"  # has long timeouts
HURRIED = "mezzo"  # waits HURRY_S for a connection, a first token and a next one
BOUNDED = "fortissimo"  # waits HURRY_S between tokens and TOTAL_S in all, for BOUNDED_TOKENS at most
HURRY_S = 0.3
TOTAL_S = 5.0  # a busy machine must begin an answer within it
BOUNDED_TOKENS = 16


class Expected(msgspec.Struct, frozen=True):
    """What a client must see: the status and, with a 200, the text (None: any) and whether the stream broke."""

    status: int
    text: str | None = None
    is_broken: bool = False
    retry_after_s: int | None = None


FAILED = Expected(502)
REFUSED = Expected(400)
BUSY = Expected(429, retry_after_s=2)
WHOLE = Expected(200, TEXT)
BROKEN = Expected(200, HALF, is_broken=True)


class Fault(msgspec.Struct, frozen=True):
    """What the upstream does, and what the client must see in either mode."""

    reply: Reply
    stream: Expected = FAILED
    plain: Expected = FAILED
    class_id: str = PATIENT
    max_tokens: int | None = None


Faults = Mapping[str, Fault]


def body_of(*events: EventData) -> bytes:
    """Events as the body of a stream, without HTTP chunks."""
    return b"".join(sse_event(event) if isinstance(event, dict) else event for event in events)


def opened(*events: EventData) -> bytes:
    """The beginning of a stream: its head, and an HTTP chunk for each event, in one piece."""
    return SSE_HEAD + b"".join(framed(body_of(event)) for event in events)


def unended(*events: Event) -> Sse:
    """A stream without [DONE], whose last event closes or resets the connection."""
    return Sse(events, done=False)
