"""The event stream of one reply, without I/O: bytes in, pieces out.

    phase      meaning                                                next
    BEGINNING  no sign of an answer yet                               ANSWERING, FINISHED or ENDED
    ANSWERING  the model has begun to answer                          FINISHED or ENDED
    FINISHED   a finish reason arrived; the usage may still follow    ENDED
    ENDED      after [DONE], the end of the body or a fault           none: the rest is ignored

A fault after FINISHED is ignored, because the reply is complete. A fault before FINISHED breaks the reply off.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto

from cadenza.http.events import EVENT_BYTES_MAX, EventReader, EventTooLarge
from cadenza.upstreams.base import Fault, FaultKind, Piece, ReplyBounds
from cadenza.upstreams.reader import EXTRAS, ChunkReader

Take = Callable[[Piece], None]


class Phase(Enum):
    """See the module's table."""

    BEGINNING = auto()
    ANSWERING = auto()
    FINISHED = auto()
    ENDED = auto()


BEGINNING, ANSWERING, FINISHED, ENDED = Phase  # as names: Python 3.11 is slow to look up Phase.X


class ReplyStream:
    """Reads the stream of one reply within its bounds. `extras` names what is passed on."""

    def __init__(self, bounds: ReplyBounds, extras: Sequence[str] = EXTRAS) -> None:
        self.phase = BEGINNING
        self.fault: Fault | None = None
        self.has_terminator = False
        self._events_left = bounds.events
        self._bytes_left = bounds.size_bytes
        self._events = EventReader(min(EVENT_BYTES_MAX, bounds.size_bytes))
        self._chunks = ChunkReader(extras)

    @property
    def is_whole(self) -> bool:
        return self.phase is ENDED and self.fault is None

    def feed(self, data: bytes, take: Take) -> None:
        """Pass each piece that these bytes complete to `take`.

        Most events differ from the one before only in their text. Recognising them costs a quarter of decoding them.
        """
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            self.end(FaultKind.OVERLONG)
            return
        if self.phase is ANSWERING and self._events.is_between:
            texts = self._chunks.recognise(data)
            if texts and len(texts) <= self._events_left:
                self._events_left -= len(texts)
                for text in texts:
                    take(Piece(text, None, None, False, True))  # keywords would cost 0.2 µs more
                return
        try:
            self._take_events(self._events.feed(data), take)
        except EventTooLarge:
            self.end(FaultKind.MALFORMED)

    def end_of_body(self, take: Take) -> None:
        """The body has ended. The blank line after its last event may be missing."""
        self._take_events(self._events.end(), take)
        self.end(FaultKind.TRUNCATED)

    def end(self, kind: FaultKind) -> None:
        """Read no more. If the reply is not finished, this is its fault."""
        self._end(Fault(kind))

    def _end(self, fault: Fault) -> None:
        if self.phase is not ENDED:
            self.fault = None if self.phase is FINISHED else fault
            self.phase = ENDED

    def _take_events(self, events: list[bytes], take: Take) -> None:
        for event in events:
            if self.phase is ENDED:
                return
            self._events_left -= 1
            if self._events_left < 0:
                self.end(FaultKind.OVERLONG)
                return
            try:
                piece = self._chunks.read(event)
            except Fault as fault:
                self._end(fault)
                return
            if piece is None:
                self.has_terminator = True
                self.end(FaultKind.TRUNCATED)
                return
            self._events_left -= len(piece.calls)  # each call in an event counts like an event
            if self._events_left < 0:
                self.end(FaultKind.OVERLONG)
                return
            if piece.finish_reason:
                self.phase = FINISHED
            elif piece.has_begun and self.phase is BEGINNING:
                self.phase = ANSWERING
            take(piece)
