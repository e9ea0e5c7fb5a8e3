"""Reads the events of a stream, of which most differ from the one before only in their text."""

from collections.abc import Sequence

import msgspec

from cadenza.core.content import Content
from cadenza.core.tool_calls import ToolCallPart
from cadenza.http.events import LF, write_event
from cadenza.upstreams.base import Piece
from cadenza.upstreams.reader import EXTRAS, read_chunk

(BACKSLASH,) = b"\\"  # a number, as in http/events.py
_read_text = msgspec.json.Decoder(str).decode


class ChunkReader(Content, msgspec.Struct, eq=False):
    """Reads the events of one stream. Most of them differ from the previous one only in their text.

    The text is that of the answer, or a part of the arguments of a call. The bytes before and after it are kept of the
    last decoded event. An event with the same bytes around another text means the same and is not decoded (1.3 µs
    instead of 3.5).
    """

    extras: Sequence[str] = EXTRAS  # the names of those to pass on
    before: bytes = b""  # the text of an event, as sent
    after: bytes = b""
    between: bytes = b""  # the end of one event and the start of the next
    call: ToolCallPart | None = None  # what the text is a part of; None: of the answer

    def recognise(self, data: bytes) -> list[str] | None:
        """The texts, if the data is whole events that differ from the last decoded one only in their text.

        A text as JSON has no control characters, so it cannot contain the end of a line or of an event.
        """
        inner = data.removeprefix(self.before)
        written = inner.removesuffix(self.after)
        if inner is data or written is inner:  # nothing was removed: bytes return themselves
            return None
        try:
            text = written.decode()
            if text and text.isprintable() and '"' not in text and "\\" not in text:  # the usual case
                return [text]
            texts = [_read_text(b'"%b"' % one) for one in written.split(self.between)]
        except (msgspec.MsgspecError, UnicodeDecodeError):  # left to the decoder
            return None
        return texts if all(texts) else None

    def piece(self, text: str) -> Piece:
        """What an event says that was recognised."""
        if self.call is None:
            return Piece(text, None, None, False, True)  # keywords would cost 0.2 µs more
        return Piece("", None, None, False, True, (ToolCallPart(self.call.index, "", "", text),))

    def read(self, data: bytes) -> Piece | None:
        """The piece in one event; None for the terminator."""
        texts = self.recognise(write_event(data))
        if texts and len(texts) == 1:  # data of several lines can look like several events
            return self.piece(texts[0])
        piece = read_chunk(data, self.extras)
        if piece and (piece.content or piece.calls) and BACKSLASH not in data and LF not in data:
            self._learn(data, piece)
        return piece

    def _learn(self, data: bytes, piece: Piece) -> None:
        """Keep the bytes around the text, if the event has nothing but one text.

        It has one line and no escapes: an escaped field name could be mistaken for another one.
        """
        call = None if piece.content else piece.calls[0]
        field, text = (b'"content":', piece.content) if call is None else (b'"arguments":', call.arguments)
        name = field + b'"' if field + b'"' in data else field + b' "'
        written = name + text.encode() + b'"'
        is_once = data.count(written) == 1 and data.count(field[:-1]) == 1 and b'"message"' not in data
        learned = ChunkReader(call=call)
        if text and is_once and learned.piece(text) == piece:
            start = data.index(written) + len(name)
            self.call, self.before = call, b"data: " + data[:start]
            self.after = data[start + len(written) - len(name) - 1 :] + b"\n\n"
            self.between = self.after + self.before
