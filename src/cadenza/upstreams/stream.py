"""The event stream of one reply, without I/O: bytes in, pieces out.

    phase      meaning                                                next
    BEGINNING  no sign of an answer yet                               ANSWERING, FINISHED or ENDED
    ANSWERING  the model has begun to answer                          FINISHED or ENDED
    FINISHED   a finish reason arrived; the usage may still follow    ENDED
    ENDED      after [DONE], the end of the body or a fault           none: the rest is ignored

A fault after FINISHED is ignored, because the reply is complete. A fault before FINISHED breaks the reply off.
"""

from collections.abc import Sequence
from enum import Enum, auto

from cadenza.core.faults import FaultKind
from cadenza.http.events import EVENT_BYTES_MAX, EventReader, EventTooLarge
from cadenza.upstreams.base import Fault, ReplyBounds, Sink
from cadenza.upstreams.chunk_reader import ChunkReader
from cadenza.upstreams.reader import EXTRAS


class StreamPhase(Enum):
    """See the module's table."""

    BEGINNING = auto()
    ANSWERING = auto()
    FINISHED = auto()
    ENDED = auto()


BEGINNING, ANSWERING, FINISHED, ENDED = StreamPhase  # as names: Python 3.11 is slow to look up StreamPhase.X


class ReplyStream:
    """Reads the stream of one reply within its bounds, for a sink. `extras` names what is passed on."""

    def __init__(self, bounds: ReplyBounds, sink: Sink, extras: Sequence[str] = EXTRAS) -> None:
        self.sink = sink  # another one may take the rest
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

    def feed(self, data: bytes) -> bool:
        """Hand the sink each piece that these bytes complete. False if it is congested, or another phase has begun.

        Most events differ from the one before only in their text. Recognising them costs a quarter of decoding them.
        """
        phase = self.phase
        self._bytes_left = bytes_left = self._bytes_left - len(data)
        if bytes_left < 0:
            self.end(FaultKind.OVERLONG)
            return False
        if phase is ANSWERING and self._events.is_between and (texts := self._chunks.recognise(data)) is not None:
            is_call = self._chunks.call is not None
            events_left = self._events_left - (2 * len(texts) if is_call else len(texts))
            if events_left >= 0:
                self._events_left = events_left
                return self._take_calls(texts) if is_call else self.sink.take_texts(texts)
        try:
            self._take_events(self._events.feed(data))
        except EventTooLarge:
            self.end(FaultKind.MALFORMED)
        return self.sink.flush() and self.phase is phase

    def _take_calls(self, texts: list[str]) -> bool:
        for text in texts:
            self.sink.take(self._chunks.piece(text))
        return self.sink.flush()

    def end_of_body(self) -> None:
        """The body has ended. The blank line after its last event may be missing."""
        self._take_events(self._events.end())
        self.end(FaultKind.TRUNCATED)

    def end(self, kind: FaultKind) -> None:
        """Stop reading. If the reply is not finished, this is its fault."""
        if self.phase is BEGINNING or self.phase is ANSWERING:
            self.fault = Fault(kind)
        self.phase = ENDED

    def _take_events(self, events: list[bytes]) -> None:
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
                self.fault = None if self.phase is FINISHED else fault
                self.phase = ENDED
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
            self.sink.take(piece)
