"""The event stream of one reply, without I/O: bytes in, pieces out.

    phase      meaning                                                next
    BEGINNING  no sign of an answer yet                               ANSWERING, FINISHED or ENDED
    ANSWERING  the model has begun to answer                          FINISHED or ENDED
    FINISHED   a finish reason arrived; the usage may still follow    ENDED
    ENDED      after [DONE], the end of the body or a fault           none: the rest is ignored

A fault after FINISHED is ignored, because the reply is complete. A fault before FINISHED breaks the reply off.
"""

import re
from collections.abc import Sequence
from enum import Enum, auto

import msgspec

from cadenza.core.content import Content
from cadenza.core.faults import FaultKind
from cadenza.http.events import EVENT_BYTES_MAX, LF, EventReader, EventTooLarge, write_event
from cadenza.upstreams.base import Fault, Piece, ReplyBounds, Sink
from cadenza.upstreams.reader import EXTRAS, read_chunk

ESCAPED = re.compile(r'["\\\x00-\x1f]')  # what JSON cannot have in a text without escapes
(BACKSLASH,) = b"\\"  # a number, as in http/events.py


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
            events_left = self._events_left - len(texts)
            if events_left >= 0:
                self._events_left = events_left
                return self.sink.take_texts(texts)
        try:
            self._take_events(self._events.feed(data))
        except EventTooLarge:
            self.end(FaultKind.MALFORMED)
        return self.sink.flush() and self.phase is phase

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


class ChunkReader(Content, msgspec.Struct, eq=False):
    """Reads the events of one stream. Most of them differ from the previous one only in their text.

    The bytes before and after the text of the last decoded event are kept. An event with the same bytes around a text
    without escapes means the same and is not decoded (1.3 µs instead of 3.5).
    """

    extras: Sequence[str] = EXTRAS  # the names of those to pass on
    before: bytes = b""  # the text of an event, as sent
    after: bytes = b""
    between: str = ""  # the end of one event and the start of the next

    def recognise(self, data: bytes) -> list[str] | None:
        """The texts, if the data is whole events that differ from the last decoded one only in their text.

        Such a text has no control characters, so it cannot contain the end of a line or of an event.
        """
        rest = data.removeprefix(self.before)
        content = rest.removesuffix(self.after)
        if rest is data or content is rest:  # nothing was removed: bytes return themselves
            return None
        try:
            text = content.decode()
        except UnicodeDecodeError:  # left to the decoder
            return None
        if text and text.isprintable() and '"' not in text and "\\" not in text:  # the usual case
            return [text]
        texts = text.split(self.between)
        return texts if all(texts) and not ESCAPED.search("".join(texts)) else None

    def read(self, data: bytes) -> Piece | None:
        """The piece in one event; None for the terminator."""
        texts = self.recognise(write_event(data))
        if texts and len(texts) == 1:  # data of several lines can look like several events
            return Piece(texts[0], None, None, False, True)  # keywords would cost 0.2 µs more
        piece = read_chunk(data, self.extras)
        if piece and piece.content and BACKSLASH not in data and LF not in data:
            self._learn(data, piece)
        return piece

    def _learn(self, data: bytes, piece: Piece) -> None:
        """Keep the bytes around the text, if the event has nothing but one text.

        It has one line and no escapes: an escaped field name could be mistaken for another one.
        """
        name = b'"content":"' if b'"content":"' in data else b'"content": "'
        written = name + piece.content.encode() + b'"'
        is_only_text = not (piece.finish_reason or piece.usage or piece.has_bad_usage or piece.calls or piece.extras)
        is_once = data.count(written) == 1 and data.count(b'"content"') == 1 and b'"message"' not in data
        if is_only_text and is_once:
            start = data.index(written) + len(name)
            self.before, self.after = b"data: " + data[:start], data[start + len(written) - len(name) - 1 :] + b"\n\n"
            self.between = (self.after + self.before).decode(errors="surrogateescape")
