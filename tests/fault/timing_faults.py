"""Faults of timing: an upstream that falls silent at any phase, is too slow, or sends without end.

A slow but correct reply within the timeouts of its route is served whole.
"""

from collections.abc import Iterator

import msgspec

from tests.fault.faults import (
    BEGUN,
    BOUNDED,
    BROKEN,
    HURRIED,
    HURRY_S,
    OPEN_JSON,
    TEXT,
    WHOLE,
    Fault,
    Faults,
    opened,
)
from tests.fault.http_faults import BODY, OK, SOUND
from tests.loopback import ROLE, STOP, ByMode, Endless, Raw, Reply, Request, Step, Wait, chunk, framed, said, sse_event

PIECE_S = 0.02
SLOW_S = HURRY_S / 4
EMPTY = framed(sse_event(chunk(choices=[])))
COMMENT = framed(b": still here\n\n")


class Slowed(msgspec.Struct, frozen=True):
    """Another reply, with a wait before each step."""

    reply: Reply
    wait_s: float

    def steps(self, request: Request) -> Iterator[Step]:
        for step in self.reply.steps(request):
            yield Wait(self.wait_s)
            yield step


def hurried(reply: Reply) -> Fault:
    """No answer begins in time."""
    return Fault(reply, class_id=HURRIED)


def bounded(reply: Reply) -> Fault:
    """An answer begins, and does not go on or does not end in time."""
    return Fault(reply, stream=BROKEN, class_id=BOUNDED)


def finished(reply: Reply) -> Fault:
    """The answer is complete; the service does not wait for the rest."""
    return Fault(reply, WHOLE, WHOLE, class_id=BOUNDED)


TIMED: Faults = {
    "silent after the request": hurried(Raw([Wait()])),
    "silent after the headers": hurried(ByMode(Raw([opened(), Wait()]), Raw([OPEN_JSON, Wait()]))),
    "silent within JSON": hurried(Raw([OPEN_JSON, BODY[:40], Wait()])),
    "silent between two events": bounded(Raw([opened(*BEGUN), Wait()])),
    "silent after the finish reason": finished(Raw([opened(ROLE, said(TEXT), STOP), Wait()])),
    "a byte now and then": hurried(Slowed(Raw([bytes([byte]) for byte in OK * 9]), SLOW_S)),
    "interim answers without end, slowly": hurried(Endless([], [b"HTTP/1.1 102 Processing\r\n\r\n", Wait(SLOW_S)])),
    "comments without end, slowly": hurried(Endless([opened()], [COMMENT, Wait(SLOW_S)])),
    "slow drip": Fault(Slowed(SOUND, PIECE_S), WHOLE, WHOLE),
    "empty events without end": hurried(Endless([opened()], [EMPTY])),
    "comments without end later": bounded(Endless([opened(*BEGUN)], [COMMENT])),
    "more empty events than any answer has": Fault(Endless([opened()], [EMPTY]), max_tokens=1),
    "events without end behind the finish reason": finished(Endless([opened(ROLE, said(TEXT), STOP)], [EMPTY])),
}
