"""ChunkReader: recognising an event without decoding it gives the same piece as decoding it."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cadenza.core.faults import FaultKind
from cadenza.http.events import EventReader, write_event
from cadenza.upstreams.base import Fault, Piece
from cadenza.upstreams.chunk_reader import ChunkReader
from cadenza.upstreams.reader import read_chunk
from tests.unit.upstreams.event_strategies import (
    arguments,
    encode,
    event,
    event_lists,
    other_events,
    reads,
    text_events,
    texts,
    words,
)

Result = Piece | tuple[FaultKind, int | None] | None

HI_EVENT, HO_EVENT = (write_event(encode(event({"content": text}))) for text in ("Hi", "Ho"))
EVENT_IN_TWO_LINES = b'data: {"choices":[{"delta":\ndata: {"content":"Hi"}}]}\n\n'
ordinary_words = words.filter(lambda word: word != "content")


def decode(data: bytes) -> Result:
    """The piece, the terminator or the fault of an event that is decoded by itself."""
    try:
        return read_chunk(data)
    except Fault as fault:
        return (fault.kind, fault.status)


def read(reader: ChunkReader, data: bytes) -> Result:
    try:
        return reader.read(data)
    except Fault as fault:
        return (fault.kind, fault.status)


def decode_read(data: bytes) -> list[Result] | None:
    """The results of one read between two events; None if it leaves an unfinished event."""
    events = EventReader()
    events.feed(b": before\n\n")
    results = [decode(event_data) for event_data in events.feed(data)]
    return results if events.is_between else None


@given(event_lists)
@example([encode(event({"content": text})) for text in ("Hi", 'o"}}]}', "")])
def test_every_event_reads_the_same_after_any_other_event(events: list[bytes]) -> None:
    """The result of an event does not depend on the events before it."""
    reader = ChunkReader()
    for data in events:
        assert read(reader, data) == decode(data)


@given(other_events(), text_events())
def test_every_kind_of_event_reads_the_same_again(other: bytes, text: bytes) -> None:
    """An event that follows itself or an ordinary text event keeps its meaning."""
    reader = ChunkReader()
    for data in (other, other, text, other, text, text):
        assert read(reader, data) == decode(data)


@given(st.lists(ordinary_words, min_size=2, max_size=5))
def test_similar_text_events_are_recognised(texts: list[str]) -> None:
    """Nothing is recognised before the first text event; after it, every similar event is, with its own text."""
    reader = ChunkReader()
    assert reader.recognise(write_event(encode(event({"content": texts[1]})))) is None
    reader.read(encode(event({"content": texts[0]})))
    for text in texts[1:]:
        assert reader.recognise(write_event(encode(event({"content": text})))) == [text]


@given(st.lists(ordinary_words, min_size=1, max_size=3), st.lists(texts.filter(bool), min_size=1, max_size=3))
@pytest.mark.parametrize("make", [lambda text: {"content": text}, arguments], ids=["answer", "call"])
def test_escapes_are_read_in_similar_events(make: Callable[[str], object], first: list[str], rest: list[str]) -> None:
    """A text with escapes is recognised, alone and with others in one read, as that of the answer or of a call."""
    reader, (plain, *_) = ChunkReader(), first
    learned = reader.read(encode(event(make(plain))))
    assert learned == reader.piece(plain)
    written = [write_event(encode(event(make(text)))) for text in first + rest]
    assert reader.recognise(b"".join(written)) == first + rest
    assert [reader.recognise(one) for one in written] == [[text] for text in first + rest]


def test_a_part_of_another_call_is_not_taken_for_one_of_this_call() -> None:
    """Its index is another one, or it has a name: it is decoded."""
    reader = ChunkReader()
    reader.read(encode(event(arguments("a"))))
    assert reader.recognise(write_event(encode(event(arguments("b"))))) == ["b"]
    assert reader.recognise(write_event(encode(event(arguments("b", index=1))))) is None
    assert reader.recognise(write_event(encode(event(arguments("b", name="look"))))) is None


@pytest.mark.parametrize(
    "data",
    [
        encode(event({"content": ""})),
        encode(event({"content": "Hi"}, finish="stop")),
        encode(event({"content": "Hi"}, model="another")),
        encode(event({"content": "Hi"}))[:-1],
        encode(event({"content": "Hi", "role": "assistant"})),
        b"[DONE]",
    ],
    ids=["empty", "finish", "another field", "truncated", "role", "terminator"],
)
def test_other_events_are_not_recognised(data: bytes) -> None:
    """An event that differs in more than its text is decoded."""
    reader = ChunkReader()
    reader.read(encode(event({"content": "Hi"})))
    assert reader.recognise(HO_EVENT) == ["Ho"]
    assert reader.recognise(write_event(data)) is None


def test_an_event_shorter_than_the_bytes_around_the_text_is_not_recognised() -> None:
    """The bytes before the text and the bytes after it must not overlap."""
    reader = ChunkReader()
    similar = encode(event({"content": "Hi"}))
    reader.read(similar)
    start = similar.index(b"Hi")
    for cut in range(1, 40):
        assert reader.recognise(write_event(similar[: start - cut] + similar[start + 2 :])) is None
        assert read(reader, similar[:start] + similar[start + 2 + cut :]) == (FaultKind.MALFORMED, None)


@pytest.mark.parametrize("wrong", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"a\x80b"])
def test_invalid_utf_8_is_malformed(wrong: bytes) -> None:
    """Invalid UTF-8 in an otherwise similar event is a fault, and the next event is read."""
    reader = ChunkReader()
    similar = encode(event({"content": "Hi"}))
    reader.read(similar)
    assert read(reader, similar.replace(b"Hi", wrong)) == (FaultKind.MALFORMED, None)
    assert read(reader, similar) == Piece("Hi", has_begun=True)


@pytest.mark.parametrize(
    "content",
    [b'"content" :"Hi"', b'"content":[{"type":"text","text":"Hi"}]', b'"c\\u006fntent":"Hi"'],
    ids=["space", "parts", "escaped name"],
)
def test_another_field_named_content_is_not_taken_for_the_text(content: bytes) -> None:
    """If the text is written in an unusual way, a field `content` elsewhere in the event is not taken for it."""
    reader = ChunkReader()
    for note in (b"Hi", b"Ho"):
        data = b'{"x":{"content":"' + note + b'"},"choices":[{"index":0,"delta":{' + content + b"}}]}"
        assert read(reader, data) == decode(data) == Piece("Hi", has_begun=True)


@given(st.lists(reads(), min_size=1, max_size=6))
@example([EVENT_IN_TWO_LINES, EVENT_IN_TWO_LINES.replace(b"\ndata: ", b"\n")])
@example([HI_EVENT, HO_EVENT * 2])
@example([HI_EVENT, HO_EVENT[:-1]])
@example([HI_EVENT, b"\xef\xbb\xbf" + HO_EVENT])
@example([HI_EVENT, *(HO_EVENT.replace(b"Ho", text) for text in (b"H\no", b"H\ro", b"H\to"))])
def test_a_read_is_recognised_only_if_it_is_whole_events(wire: list[bytes]) -> None:
    """After any bytes, a recognised read is whole events, and decoding them gives the same texts."""
    reader, events = ChunkReader(), EventReader()
    for data in wire:
        texts = reader.recognise(data)
        assert texts is None or decode_read(data) == [reader.piece(text) for text in texts]
        for event_data in events.feed(data):
            read(reader, event_data)
