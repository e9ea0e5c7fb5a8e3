"""ReplyStream: bytes in any split become the same pieces, and every stream ends complete or with one fault."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cadenza.core.faults import FaultKind
from cadenza.core.records import Usage
from cadenza.http.events import DONE, EVENT_BYTES_MAX, EventReader, write_event
from cadenza.upstreams.base import Collector, Fault, Piece, ReplyBounds
from cadenza.upstreams.reader import read_chunk
from cadenza.upstreams.stream import ReplyStream, StreamPhase
from tests.unit.upstreams.event_strategies import arguments, encode, event, other_events, reads, text_events, texts

Ending = tuple[StreamPhase, FaultKind | None, int | None, bool]

MANY = 1_000_000
MANY_BYTES = 1 << 30
COUNTS = {"prompt_tokens": 11, "completion_tokens": 7}
ROLE = write_event(encode(event({"role": "assistant", "content": ""})))
FINISH = write_event(encode(event({}, finish="stop")))
USAGE = write_event(encode({"choices": [], "usage": COUNTS}))


CALL_EVENT = write_event(encode(event(arguments("a"))))


def text_event(text: str) -> bytes:
    return write_event(encode(event({"content": text})))


def read_stream(*parts: bytes, events_max: int = MANY, ends: bool = True) -> tuple[list[Piece], ReplyStream]:
    """The pieces of these reads, and the stream after them."""
    sink = Collector()
    stream = ReplyStream(ReplyBounds(events_max, MANY_BYTES), sink)
    for part in parts:
        stream.feed(part)
    if ends:
        stream.end_of_body()
    return sink.pieces, stream


def ending_of(stream: ReplyStream) -> Ending:
    if stream.fault:
        return stream.phase, stream.fault.kind, stream.fault.status, stream.has_terminator
    return stream.phase, None, None, stream.has_terminator


def decode_stream(data: bytes, events_max: int) -> tuple[list[Piece], Ending]:
    """What a stream means, by the plainest reading: split it into events, decode each one by itself."""
    reader, pieces, is_finished = EventReader(), list[Piece](), False
    for number, event_data in enumerate([*reader.feed(data), *reader.end()]):
        try:
            if number == events_max:
                raise Fault(FaultKind.OVERLONG)
            piece = read_chunk(event_data)
        except Fault as fault:
            return pieces, (
                StreamPhase.ENDED,
                None if is_finished else fault.kind,
                None if is_finished else fault.status,
                False,
            )
        if piece is None:
            return pieces, (StreamPhase.ENDED, None if is_finished else FaultKind.TRUNCATED, None, True)
        events_max -= len(piece.calls)
        if number >= events_max:
            return pieces, (StreamPhase.ENDED, None if is_finished else FaultKind.OVERLONG, None, False)
        pieces.append(piece)
        is_finished = is_finished or piece.finish_reason is not None
    return pieces, (StreamPhase.ENDED, None if is_finished else FaultKind.TRUNCATED, None, False)


@st.composite
def ordinary_streams(draw: st.DrawFn) -> list[bytes]:
    """The events of a stream of mostly text, with or without a finish reason, usage and terminator."""
    events = draw(
        st.lists(st.one_of(text_events(), texts.map(lambda text: encode(event({"content": text})))), max_size=12)
    )
    if draw(st.booleans()):
        events.insert(draw(st.integers(0, len(events))), draw(other_events()))
    ends = [end for end in (FINISH, USAGE, DONE) if draw(st.booleans())]
    return [*map(write_event, events), *ends]


@st.composite
def split_streams(draw: st.DrawFn) -> list[bytes]:
    """An ordinary stream, split into reads at event boundaries, at other places or at both."""
    events = draw(ordinary_streams())
    data = b"".join(events)
    ends = [len(b"".join(events[:count])) for count in range(1, len(events))]
    boundaries = [end for end in ends if draw(st.integers(0, 3))]
    elsewhere = draw(st.lists(st.integers(0, len(data)), max_size=4))
    places = sorted({0, len(data), *boundaries, *elsewhere})
    return [data[start:end] for start, end in itertools.pairwise(places)]


limits = st.one_of(st.just(MANY), st.integers(0, 12))


@given(split_streams() | st.lists(reads(), max_size=6), limits)
@example([ROLE, text_event("a"), text_event("b"), text_event("c"), FINISH, USAGE, DONE], MANY)
@example([text_event("a"), text_event("b") + text_event("c")[:30], text_event("c")[30:], FINISH], MANY)
@example([text_event("a"), b"data: \n", text_event("b"), FINISH], MANY)
@example([text_event("a"), b"data: x\n", text_event("b"), FINISH], MANY)
@example([text_event("a"), b": an unfinished comment ", text_event("b"), text_event("c"), FINISH], MANY)
@example([text_event("a"), text_event("b"), text_event("c"), FINISH], 2)
@example([CALL_EVENT, CALL_EVENT, CALL_EVENT, FINISH], 5)
def test_any_split_gives_the_same_pieces_and_the_same_end(parts: list[bytes], events_max: int) -> None:
    """However the bytes are split, and whether or not an event is recognised early, each event is decoded alike."""
    pieces, stream = read_stream(*parts, events_max=events_max)
    assert (pieces, ending_of(stream)) == decode_stream(b"".join(parts), events_max)


UNUSUAL_READS: dict[str, list[bytes]] = {
    "two events in one read": [text_event("one ") + text_event("two ")],
    "one event and a half": [text_event("one ") + text_event("two ")[:40], text_event("two ")[40:]],
    "split events": [text_event("one ")[:60], text_event("one ")[60:], text_event("two ")[:-1], b"\n"],
    "split after data": [b"data: ", text_event("one two ")[6:]],
    "an event in two lines": [text_event("one two ").replace(b',"created"', b'\ndata: ,"created"')],
    "after an empty line of data": [b"data: \n", text_event("one two ")],
    "carriage returns": [text_event("one ").replace(b"\n", b"\r\n"), text_event("two ").replace(b"\n", b"\r")],
    "after a comment": [b": here\n\n" + text_event("one "), text_event("two ") + b": here\n\n"],
    "with a role": [write_event(encode(event({"role": "assistant", "content": "one two "})))],
    "with another field": [write_event(encode(event({"content": "one two "}, more=1)))],
    "with usage": [write_event(encode(event({"content": "one two "}, usage=COUNTS)))],
    "escaped": [write_event(encode(event({"content": "one\ttwo "})))],
}


@pytest.mark.parametrize("parts", UNUSUAL_READS.values(), ids=UNUSUAL_READS)
def test_unusual_reads_after_a_recognised_event_lose_nothing(parts: list[bytes]) -> None:
    """Events that cannot be recognised early are decoded, in order with those that can."""
    pieces, stream = read_stream(text_event("A "), text_event("B "), *parts, text_event("C"), FINISH)
    assert "".join(piece.content for piece in pieces).replace("\t", " ") == "A B one two C"
    assert stream.is_whole


BEGINNINGS: dict[str, tuple[bytes, StreamPhase]] = {
    "a comment": (b": still here\n\n", StreamPhase.BEGINNING),
    "a role": (ROLE, StreamPhase.BEGINNING),
    "usage": (USAGE, StreamPhase.BEGINNING),
    "half an event": (text_event("Hi")[:-1], StreamPhase.BEGINNING),
    "text": (text_event("Hi"), StreamPhase.ANSWERING),
    "reasoning": (write_event(encode(event({"reasoning": "hm"}))), StreamPhase.ANSWERING),
    "a tool call": (
        write_event(encode(event({"tool_calls": [{"index": 0, "function": {"name": "look"}}]}))),
        StreamPhase.ANSWERING,
    ),
    "a finish reason": (FINISH, StreamPhase.FINISHED),
    "text with a finish reason": (write_event(encode(event({"content": "Hi"}, finish="stop"))), StreamPhase.FINISHED),
}


@pytest.mark.parametrize(("data", "phase"), BEGINNINGS.values(), ids=BEGINNINGS)
def test_the_phase_after_a_first_read(data: bytes, phase: StreamPhase) -> None:
    """Text, reasoning and tool calls begin an answer, a finish reason finishes it, and nothing else does."""
    _, stream = read_stream(data, ends=False)
    assert (stream.phase, stream.fault, stream.is_whole) == (phase, None, False)


BROKEN: dict[str, tuple[list[bytes], FaultKind, int | None]] = {
    "the end of the body": ([], FaultKind.TRUNCATED, None),
    "a terminator": ([DONE], FaultKind.TRUNCATED, None),
    "an error": ([write_event(b'{"error":{"message":"x"}}')], FaultKind.FAILED, 500),
    "an error with a status": ([write_event(b'{"error":{"code":429}}')], FaultKind.BUSY, 429),
    "not JSON": ([b"data: <html>\n\n"], FaultKind.MALFORMED, None),
    "an event without end": ([b"data: ", bytes(EVENT_BYTES_MAX)], FaultKind.MALFORMED, None),
}


@pytest.mark.parametrize("before", [[], [text_event("one"), text_event("two")]], ids=["at once", "after text"])
@pytest.mark.parametrize(("parts", "kind", "status"), BROKEN.values(), ids=BROKEN)
def test_an_end_without_a_finish_reason_is_a_fault(
    before: list[bytes], parts: list[bytes], kind: FaultKind, status: int | None
) -> None:
    """A stream that ends before its finish reason has a fault; the pieces before it were handed on, none after it."""
    ignored = [text_event("too late"), FINISH] if parts else []
    pieces, stream = read_stream(*before, *parts, *ignored, ends=not parts)
    assert "".join(piece.content for piece in pieces) == ("onetwo" if before else "")
    assert stream.fault is not None
    assert (stream.phase, stream.fault.kind, stream.fault.status) == (StreamPhase.ENDED, kind, status)
    assert not stream.is_whole


def test_an_event_without_end_ends_the_stream_when_its_limit_is_reached() -> None:
    """The rest of it is not waited for."""
    _, stream = read_stream(b"data: ", bytes(EVENT_BYTES_MAX), ends=False)
    assert stream.phase is StreamPhase.ENDED


@pytest.mark.parametrize("parts", [parts for parts, _, _ in BROKEN.values()], ids=BROKEN)
def test_no_fault_after_a_finish_reason(parts: list[bytes]) -> None:
    """A stream with a finish reason is complete, regardless of how it ends."""
    pieces, stream = read_stream(text_event("Hi"), FINISH, *parts)
    assert [piece.content or piece.finish_reason for piece in pieces] == ["Hi", "stop"]
    assert (stream.is_whole, stream.fault) == (True, None)


def test_pieces_after_a_finish_reason_are_handed_on() -> None:
    """Usage and late text are handed on until the stream ends."""
    pieces, stream = read_stream(text_event("one"), text_event("two"), FINISH, text_event("three"), USAGE, DONE)
    assert "".join(piece.content for piece in pieces) == "onetwothree"
    assert pieces[-1].usage == Usage(11, 7)
    assert (stream.is_whole, stream.has_terminator) == (True, True)


def test_the_last_event_may_lack_its_blank_line() -> None:
    """An event that the end of the body completes is handed on, and its finish reason counts."""
    pieces, stream = read_stream(text_event("Hi"), FINISH.rstrip(b"\n"))
    assert pieces[-1].finish_reason == "stop"
    assert stream.is_whole


@pytest.mark.parametrize("kind", [FaultKind.TIMED_OUT, FaultKind.OVERLONG, FaultKind.TRUNCATED])
def test_ending_a_stream_from_outside(kind: FaultKind) -> None:
    """The first fault that ends an unfinished stream stays; a finished stream has none."""
    _, stream = read_stream(text_event("Hi"), ends=False)
    stream.end(kind)
    stream.end(FaultKind.MALFORMED)
    assert stream.fault is not None
    assert stream.fault.kind is kind
    _, stream = read_stream(text_event("Hi"), FINISH, ends=False)
    stream.end(kind)
    assert stream.is_whole


@pytest.mark.parametrize("text", ["x", '"'], ids=["recognised", "decoded"])
@pytest.mark.parametrize("together", [True, False], ids=["in one read", "in a read each"])
def test_the_bound_of_events_is_exact(text: str, together: bool) -> None:
    """A stream may have as many events as its bound, recognised or decoded; one more is OVERLONG and not handed on."""
    for extra in (0, 1):
        events = [text_event("x")] + [text_event(text)] * (9 + extra)
        pieces, stream = read_stream(*([b"".join(events)] if together else events), events_max=10, ends=False)
        assert len(pieces) == 10
        assert (stream.fault and stream.fault.kind) is (FaultKind.OVERLONG if extra else None)


@pytest.mark.parametrize(("missing", "kind"), [(0, None), (1, FaultKind.OVERLONG)])
def test_the_bound_of_bytes_is_exact(missing: int, kind: FaultKind | None) -> None:
    """A stream may have as many bytes as its bound; one more is OVERLONG."""
    data = text_event("x")
    stream = ReplyStream(ReplyBounds(MANY, len(data) - missing), Collector())
    stream.feed(data)
    assert (stream.fault and stream.fault.kind) is kind


def test_an_exception_of_the_sink_reaches_the_caller() -> None:
    """An exception that `take` raises is not taken for a fault of the stream."""

    class RefusingSink(Collector):
        """Takes no piece."""

        def take(self, piece: Piece) -> None:
            raise ZeroDivisionError

    stream = ReplyStream(ReplyBounds(MANY, MANY_BYTES), RefusingSink())
    with pytest.raises(ZeroDivisionError):
        stream.feed(text_event("Hi"))
    assert stream.fault is None
