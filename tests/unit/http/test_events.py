"""Server-sent events: all that the standard allows is read, however the bytes are split; what is written is minimal."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.http.events import DONE, EVENT_BYTES_MAX, PING, EventReader, EventTooLarge, write_event

BOM = b"\xef\xbb\xbf"
MIB = 1024 * 1024
one_line = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)
other_lines = st.sampled_from(
    [b": ping", b":", b"id: 7", b"id", b"retry: 10", b"event: message", b"dataset: no", b"data : no", b"Data: no"]
)
cuts = st.lists(st.integers(0, 400), max_size=12)


class Line(msgspec.Struct, frozen=True):
    """One line of an event as it is sent, and its data if it is a data line."""

    sent: bytes
    data: bytes | None = None


@st.composite
def data_lines(draw: st.DrawFn) -> Line:
    value = draw(one_line).encode()
    spellings = [b"data: " + value]
    if not value.startswith(b" "):
        spellings.append(b"data:" + value)
    if not value:
        spellings.append(b"data")
    return Line(draw(st.sampled_from(spellings)), value)


lines = st.one_of(data_lines(), other_lines.map(Line))
streams = st.lists(st.lists(lines, max_size=5), max_size=5)


@st.composite
def sent_streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """The bytes of a stream, with any of the three line ends after each line, and the events in it."""
    events = draw(streams)
    sent = draw(st.sampled_from([b"", BOM]))
    for event in events:
        for line in [*(line.sent for line in event), b""]:
            end = draw(st.sampled_from([b"\n", b"\r", b"\r\n"]))
            is_glued = sent.endswith(b"\r") and line + end == b"\n"  # with the CR before it this would be one line end
            sent += line + (b"\r\n" if is_glued else end)
    data = (b"\n".join(line.data for line in event if line.data is not None) for event in events)
    return sent, [event for event in data if event]


def read_all(parts: list[bytes]) -> list[bytes]:
    reader = EventReader()
    return [event for part in parts for event in reader.feed(part)]


def feed_often(reader: EventReader, part: bytes, times: int) -> None:
    for _ in range(times):
        reader.feed(part)


def split(sent: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(at), len(sent)]
    return [sent[start:end] for start, end in itertools.pairwise(edges)]


@given(sent_streams(), cuts)
def test_any_split_gives_the_same_events(stream: tuple[bytes, list[bytes]], at: list[int]) -> None:
    """A stream has the same events if it is read at once, split anywhere, or a byte at a time."""
    sent, events = stream
    assert read_all([sent]) == events
    assert read_all(split(sent, at)) == events
    assert read_all([bytes([byte]) for byte in sent]) == events


@given(one_line.filter(bool), st.sampled_from([b"", b"\n", b"\r", b"\r\n"]), cuts)
def test_end_returns_an_unfinished_event_once(text: str, last: bytes, at: list[int]) -> None:
    """An event without its blank line is returned at the end of the stream, and only once."""
    reader = EventReader()
    sent = b"data: first\n\ndata: " + text.encode() + last
    assert [event for part in split(sent, at) for event in reader.feed(part)] == [b"first"]
    assert reader.end() == [text.encode()]
    assert reader.end() == []


@pytest.mark.parametrize("sent", [b"", b"\n", b"data: x\n\n", b"data: x\r\r", b": a comment", b"id: 7\n", BOM])
def test_end_without_an_unfinished_event(sent: bytes) -> None:
    """After whole events, comments and other fields the end returns no further event."""
    reader = EventReader()
    reader.feed(sent)
    assert reader.end() == []


def test_a_byte_order_mark_counts_only_at_the_start() -> None:
    """The mark is removed from the first line; on a later line it makes the field unknown."""
    assert read_all([BOM[:1], BOM[1:] + b"data: x\n\n" + BOM + b"data: y\n\n"]) == [b"x"]


def test_an_endless_line_is_too_large() -> None:
    """A line that grows past the limit is refused before it ends."""
    reader = EventReader()
    with pytest.raises(EventTooLarge):
        feed_often(reader, b"x" * MIB, EVENT_BYTES_MAX // MIB + 1)


def test_an_endless_event_is_too_large() -> None:
    """Data lines that add up past the limit are refused, even if each is short."""
    reader = EventReader()
    with pytest.raises(EventTooLarge):
        feed_often(reader, b"data: " + b"x" * MIB + b"\n", EVENT_BYTES_MAX // MIB + 2)


def test_endless_comments_are_read() -> None:
    """Comments are not kept and have no limit: they may keep a stream alive for any time."""
    reader = EventReader()
    for _ in range(EVENT_BYTES_MAX // MIB + 2):
        assert reader.feed(b": " + b"x" * MIB + b"\n") == []


def test_an_event_as_large_as_the_limit_is_read() -> None:
    """An event of exactly the limit is returned whole."""
    data = b"x" * (EVENT_BYTES_MAX - len(b"data: "))
    assert read_all([b"data: " + data, b"\n\n"]) == [data]


@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3), max_size=4), cuts)
def test_written_events_are_read_back(values: list[dict[str, str]], at: list[int]) -> None:
    """JSON of any text, written as events, is read back unchanged."""
    data = [msgspec.json.encode(value) for value in values]
    assert read_all(split(b"".join(map(write_event, data)), at)) == data


def test_an_event_is_one_data_line_and_a_blank_one() -> None:
    """Only `data:` lines are written; the terminator is an event and the ping a comment."""
    assert write_event(b"{}") == b"data: {}\n\n"
    assert read_all([PING, DONE, PING]) == [b"[DONE]"]
    assert PING.startswith(b":")


def test_the_limit_is_for_each_event() -> None:
    """Two events that are within the limit are read, even if both together are past it."""
    reader = EventReader()
    first, second = b"x" * (7 * MIB), b"y" * (2 * MIB)
    assert reader.feed(b"data: " + first + b"\n") == []
    assert reader.feed(b"\ndata: " + second) == [first]
    assert reader.feed(b"\n\n") == [second]


def test_empty_data_lines_count_towards_the_limit() -> None:
    """Every data line adds a line end to its event, so endless empty ones are refused."""
    reader = EventReader()
    reader.feed(b"data: " + b"x" * (EVENT_BYTES_MAX - 100) + b"\n")
    with pytest.raises(EventTooLarge):
        feed_often(reader, b"data\n" * 200, 3)


def test_a_reader_shows_no_content() -> None:
    """A log line or an error with a reader in it has nothing of an answer."""
    reader = EventReader()
    reader.feed(b"data: a secret")
    assert "secret" not in repr(reader)


def test_comments_in_parts_are_not_a_large_event() -> None:
    """An upstream may send heartbeats for hours: a line that is complete is no part of an event."""
    reader = EventReader(100)
    for _ in range(100):
        assert reader.feed(b": pi") + reader.feed(b"ng\n\n") == []
