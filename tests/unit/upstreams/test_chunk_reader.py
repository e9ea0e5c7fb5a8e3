"""ChunkReader: the short way through a stream of like events says exactly what the long way says of each."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cadenza.http.events import EventReader, write_event
from cadenza.upstreams.base import Fault, FaultKind, Piece
from cadenza.upstreams.dialect import ChunkReader, read_chunk

Said = Piece | tuple[FaultKind, int | None] | None

SEPARATORS = [(",", ":"), (", ", ": ")]
TRICKY = ['"content":"Hi"', '"content"', "Hi", "content", '","content":"', "\\", '"', "}]}", "\x00", "\x1f", "é", "🎼"]

texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.sampled_from([*TRICKY, "", " ", "\x7f", "\n", "\u2028", "\ud7ff"]),
)
words = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'), min_size=1, max_size=8)


def written(value: Any, separators: tuple[str, str] = SEPARATORS[0], *, is_ascii: bool = False) -> bytes:
    return json.dumps(value, separators=separators, ensure_ascii=is_ascii).encode()


def event(delta: Any, finish: str | None = None, note: str = "", **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "note": note}
    return {"id": "c-1", "object": "chat.completion.chunk", "created": 7, "choices": [choice], **fields}


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """An ordinary event: the envelope is one of a few, so that many in a row are alike."""
    note, model = draw(st.sampled_from(["", '"content":"Hi"', "content"])), draw(st.sampled_from(["a", "b"]))
    separators = draw(st.sampled_from([*SEPARATORS[:1] * 4, SEPARATORS[1]]))
    return written(event({"content": draw(texts)}, note=note, model=model), separators, is_ascii=draw(st.booleans()))


@st.composite
def others(draw: st.DrawFn) -> bytes:
    """An event that says more than a text, or something else."""
    text, more = draw(texts), draw(texts)
    call = {"index": 0, "id": "t", "function": {"name": "find", "arguments": text}}
    counts = {"prompt_tokens": 3, "completion_tokens": 2}
    choices = [{"index": index, "delta": {"content": said}} for index, said in enumerate((text, more))]
    return written(
        draw(
            st.sampled_from(
                [
                    event({"role": "assistant", "content": text}),
                    event({"content": text}, finish="stop"),
                    event({}, finish="length"),
                    event({"content": text}, usage=counts),
                    event({"content": text}, usage={"prompt_tokens": -1}),
                    event({"content": text}, usage=None),
                    {"choices": [], "usage": counts},
                    event({"tool_calls": [call]}),
                    event({"content": text, "tool_calls": [call]}),
                    event({"content": text, "function_call": {"name": "find", "arguments": more}}),
                    event({"content": text, "reasoning": more}),
                    event({"content": text, "reasoning_content": "content"}),
                    event({"reasoning": text}),
                    event({"content": [{"type": "text", "text": text}], "x": {"text": text}}),
                    event({"content": None}),
                    event({"content": 7}),
                    event({"content": text}, content=more),
                    event({"content": text, "message": more}),
                    event({"text": text}, choice={"content": text}),
                    {"choices": choices},
                    {"choices": choices[::-1]},
                    {"choices": [choices[0], choices[0]]},
                    {"choices": choices[1:]},
                    {"choices": [{"message": {"content": text}}]},
                    {"choices": [{"delta": None, "message": {"content": text}}]},
                    {"choices": [{"delta": {"content": text}, "message": {"content": more}}]},
                    {"error": {"code": 429, "message": text}},
                    {**event({"content": text}), "error": text or "x"},
                    {"choices": {"content": text}},
                    [],
                ]
            )
        )
    )


@st.composite
def twice(draw: st.DrawFn) -> bytes:
    """The name of the text stands twice in one object, and the last one counts."""
    first, last = written(draw(texts)), written(draw(texts))
    names = draw(st.sampled_from([(b'"content":', b'"content":'), (b'"content":', b'"content" :')]))
    delta = names[0] + first + b"," + names[1] + last
    return b'{"choices":[{"index":0,"delta":{' + delta + b"}}]}"


broken = st.sampled_from([b"[DONE]", b" [DONE] ", b"", b"<html>", b"{", b'{"choices":[{"delta":{"content":"\xff"}}]}'])
streams = st.lists(st.one_of(contents(), contents(), contents(), others(), twice(), broken), max_size=12)


def by_long_way(data: bytes) -> Said:
    try:
        return read_chunk(data)
    except Fault as fault:
        return (fault.kind, fault.status)


def by_short_way(reader: ChunkReader, data: bytes) -> Said:
    try:
        return reader.read(data)
    except Fault as fault:
        return (fault.kind, fault.status)


@settings(max_examples=200, deadline=None)
@given(streams)
@example([written(event({"content": "Hi"})), written(event({"content": 'o"}}]}'})), written(event({"content": ""}))])
def test_every_event_is_read_as_if_it_were_alone(stream: list[bytes]) -> None:
    """Whatever came before it, an event is the piece, the end or the fault that it is by itself."""
    reader = ChunkReader()
    for data in stream:
        assert by_short_way(reader, data) == by_long_way(data)


@settings(max_examples=100, deadline=None)
@given(others(), contents())
def test_each_kind_of_event_twice_over(other: bytes, content: bytes) -> None:
    """What is said again, after itself or after an ordinary text, means what it meant."""
    reader = ChunkReader()
    for data in (other, other, content, other, content, content):
        assert by_short_way(reader, data) == by_long_way(data)


@settings(max_examples=150, deadline=None)
@given(words.filter(lambda word: word != "content"), words)
def test_the_short_way_is_taken(first: str, second: str) -> None:
    """Once an ordinary event was read, the text of a like one is had without decoding, and is the same."""
    reader = ChunkReader()
    assert reader.text_of(write_event(written(event({"content": second})))) is None
    reader.read(written(event({"content": first})))
    assert reader.text_of(write_event(written(event({"content": second})))) == second


@pytest.mark.parametrize(
    "data",
    [
        written(event({"content": ""})),
        written(event({"content": 'say "Hi"'})),
        written(event({"content": "a\nb"})),
        written(event({"content": "Hi"}, finish="stop")),
        written(event({"content": "Hi"}, model="another")),
        written(event({"content": "Hi"}))[:-1],
        written(event({"content": "Hi", "role": "assistant"})),
        written(event({"content": "é"}), is_ascii=True),
        b"[DONE]",
    ],
    ids=["empty", "quotes", "line end", "finish", "envelope", "cut", "role", "escaped", "end"],
)
def test_what_is_not_alike_goes_the_long_way(data: bytes) -> None:
    """An event that differs in more than a plain text is decoded."""
    reader = ChunkReader()
    reader.read(written(event({"content": "Hi"})))
    assert reader.text_of(write_event(written(event({"content": "Ho"})))) == "Ho"
    assert reader.text_of(write_event(data)) is None


def test_overlapping_ends_are_no_text() -> None:
    """An event that is too short to hold both what stands before a text and what stands after it is none like it."""
    reader = ChunkReader()
    like = written(event({"content": "Hi"}))
    reader.read(like)
    start = like.index(b"Hi")
    for cut in range(1, 40):
        assert reader.text_of(write_event(like[: start - cut] + like[start + 2 :])) is None
        assert by_short_way(reader, like[:start] + like[start + 2 + cut :]) == (FaultKind.MALFORMED, None)


@pytest.mark.parametrize("wrong", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"a\x80b"])
def test_bytes_that_are_no_text_are_garbled(wrong: bytes) -> None:
    """Invalid UTF-8 in an event that is otherwise like the last one is a fault, and the next one is read."""
    reader = ChunkReader()
    like = written(event({"content": "Hi"}))
    reader.read(like)
    assert by_short_way(reader, like.replace(b"Hi", wrong)) == (FaultKind.MALFORMED, None)
    assert by_short_way(reader, like) == Piece("Hi", has_begun=True)


@pytest.mark.parametrize(
    "content",
    [b'"content" :"Hi"', b'"content":[{"type":"text","text":"Hi"}]', b'"c\\u006fntent":"Hi"'],
    ids=["spaced", "in parts", "escaped"],
)
def test_a_field_of_the_same_name_misleads_nobody(content: bytes) -> None:
    """Where the text is written in an unusual way, and a field of no meaning in the usual one, the text is the text."""
    reader = ChunkReader()
    for note in (b"Hi", b"Ho"):
        data = b'{"x":{"content":"' + note + b'"},"choices":[{"index":0,"delta":{' + content + b"}}]}"
        assert by_short_way(reader, data) == by_long_way(data) == Piece("Hi", has_begun=True)


LINE_ENDS = [b"\n", b"\n", b"\r\n", b"\r"]


@st.composite
def reads(draw: st.DrawFn) -> bytes:
    """What may come in one read: an event, several, half of one, with any line ends, comments, and a mark before it."""
    lines = list[bytes]()
    for data in draw(st.lists(st.one_of(contents(), contents(), others(), broken), min_size=1, max_size=3)):
        place = draw(st.one_of(st.none(), st.integers(0, len(data))))
        field = draw(
            st.sampled_from([b"data: ", b"data: ", b"data: ", b"data:", b"data:  ", b"event: x\ndata: ", b": "])
        )
        if place is None:
            lines += [field + data, b""]
        else:  # in two lines, of which the second may be no data
            lines += [field + data[:place], draw(st.sampled_from([b"data: ", b"data:", b""])) + data[place:], b""]
    end = draw(st.sampled_from(LINE_ENDS))
    read = draw(st.sampled_from([b"", b"", b"", b"\xef\xbb\xbf", end])) + end.join(lines) + end
    start = draw(st.sampled_from([0, 0, 0, 0, 1, 30]))
    return read[start : draw(st.sampled_from([len(read)] * 4 + [len(read) - 1, 40]))]


def by_the_wire(read: bytes) -> list[Said] | None:
    """What a read says where it comes between two events, and None where it leaves something for the next."""
    events = EventReader()
    events.feed(b": before\n\n")
    said = [by_long_way(data) for data in events.feed(read)]
    return said if events.is_between else None


HI, HO = (write_event(written(event({"content": text}))) for text in ("Hi", "Ho"))
IN_TWO_LINES = b'data: {"choices":[{"delta":\ndata: {"content":"Hi"}}]}\n\n'


@settings(max_examples=400, deadline=None)
@given(st.lists(reads(), min_size=1, max_size=6))
@example([IN_TWO_LINES, IN_TWO_LINES.replace(b"\ndata: ", b"\n")])
@example([HI, HO * 2])
@example([HI, HO[:-1]])
@example([HI, b"\xef\xbb\xbf" + HO])
@example([HI, HO.replace(b"Ho", b"H\no"), HO.replace(b"Ho", b"H\ro"), HO.replace(b"Ho", b"H\to")])
def test_a_read_is_taken_the_short_way_only_where_it_is_one_event(wire: list[bytes]) -> None:
    """Whatever came before, a text is had of a read only where the read is just one event that says just that text."""
    reader, events = ChunkReader(), EventReader()
    for read in wire:
        text = reader.text_of(read)
        assert text is None or by_the_wire(read) == [Piece(text, has_begun=True)]
        for data in events.feed(read):
            by_short_way(reader, data)


@settings(max_examples=100, deadline=None)
@given(st.lists(words.filter(lambda word: word != "content"), min_size=2, max_size=5))
def test_reads_of_one_ordinary_event_are_taken(said: list[str]) -> None:
    """After the first of them, each event that comes alone and whole is taken the short way."""
    reader = ChunkReader()
    reader.read(written(event({"content": said[0]})))
    for word in said[1:]:
        assert reader.text_of(write_event(written(event({"content": word})))) == word
