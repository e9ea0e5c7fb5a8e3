"""Replies of the child: what does not fit its task is refused, because a hostile file may have taken over the child."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.grounding import FileSize
from cadenza.parts.grounding.files.messages import (
    BadReply,
    Failed,
    FileTask,
    MeasureTask,
    ParserFault,
    TokenBudget,
    decode_reply,
)
from cadenza.parts.grounding.files.questions import AskedOfFiles
from cadenza.parts.grounding.files.records import RankedDocument, RankedPassage

TASK = FileTask("a.txt", AskedOfFiles(""), TokenBudget(10, 10))
FIELDS: dict[str, Any] = {
    "title": "",
    "labels": ["page 1"],
    "row_counts": [0],
    "wanted_tokens": 10,
    "passage_counts": [1],
    "passages": [RankedPassage(0, 0, "text", 3)],
    "tokens": 3,
    "is_whole": True,
}


def test_a_reply_to_its_task_is_taken() -> None:
    """A ranked document, a size, or a reason."""
    document = RankedDocument(**FIELDS)
    assert decode_reply(TASK, msgspec.msgpack.encode(document)) == document
    assert decode_reply(TASK, msgspec.msgpack.encode(Failed("it is empty"))) == Failed("it is empty")
    size = FileSize("3 pages", 9, 3)
    assert decode_reply(MeasureTask("a.txt"), msgspec.msgpack.encode(size)) == size


@pytest.mark.parametrize("name", ["the words of a file", "line\nbreak", "é", "x" * 41, "name\n"])
def test_a_fault_has_names_only(name: str) -> None:
    """They are logged, so a child that was taken over cannot put the text of a file there."""
    for fault in (ParserFault(name, "ValueError"), ParserFault("mail", name)):
        with pytest.raises(BadReply):
            decode_reply(TASK, msgspec.msgpack.encode(Failed("it is damaged", fault)))
    known = Failed("it is damaged", ParserFault("mail", "ValueError"))
    assert decode_reply(TASK, msgspec.msgpack.encode(known)) == known


@pytest.mark.parametrize(
    "fields",
    [
        {"labels": []},
        {"passage_counts": []},
        {"passage_counts": [-1]},
        {"passages": [RankedPassage(0, 1, "text", 3)]},
        {"passages": [RankedPassage(0, -1, "text", 3)]},
        {"passages": [RankedPassage(0, 0, "text", -3)]},
        {"tokens": -1},
    ],
    ids=str,
)
def test_a_reply_whose_parts_do_not_fit_is_refused(fields: dict[str, Any]) -> None:
    """A section that does not exist, or a negative number."""
    with pytest.raises(BadReply):
        decode_reply(TASK, msgspec.msgpack.encode(RankedDocument(**FIELDS | fields)))


def test_a_reply_to_another_task_is_refused() -> None:
    """A size instead of a document, or the other way round."""
    with pytest.raises(BadReply):
        decode_reply(TASK, msgspec.msgpack.encode(FileSize("3 pages", 9, 3)))
    with pytest.raises(BadReply):
        decode_reply(MeasureTask("a.txt"), msgspec.msgpack.encode(RankedDocument(**FIELDS)))


@given(st.binary(max_size=60))
def test_bytes_that_are_no_reply_are_refused(data: bytes) -> None:
    """Whatever they are."""
    with pytest.raises(BadReply):
        decode_reply(TASK, data)
    with pytest.raises(BadReply):
        decode_reply(TASK, b"\x81\xa4type\xa6Failed" + data)
