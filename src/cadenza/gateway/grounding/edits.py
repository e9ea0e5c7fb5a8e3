"""Puts reference material into the JSON of a message, without decoding what the client wrote around it."""

import re
from collections.abc import Iterable

import msgspec

_BLANK = re.compile(rb"\s*+")


class Edit(msgspec.Struct, frozen=True):
    """New JSON for what stands from `start` to `end` in the JSON of a message."""

    start: int
    end: int
    json: bytes


def replace_part(start: int, end: int, text: str) -> Edit:
    """A part of the content becomes a part of type text."""
    return Edit(start, end, _text_part(text))


def insert_before(message: msgspec.Raw, content_start: int, text: str) -> Edit:
    """The text comes before all else that the message says. Its content is a string or an array of parts."""
    raw, at = memoryview(message), content_start + 1
    if raw[content_start] == ord('"'):
        return Edit(at, at, msgspec.json.encode(text)[1:-1])
    assert raw[content_start] == ord("[")
    blank = _BLANK.match(raw, at)
    is_empty = blank is not None and raw[blank.end()] == ord("]")
    return Edit(at, at, _text_part(text) + (b"" if is_empty else b","))


def apply_edits(message: msgspec.Raw, edits: Iterable[Edit]) -> list[bytes | memoryview]:
    """The pieces of the new message. Edits do not overlap."""
    raw, end, pieces = memoryview(message), 0, list[bytes | memoryview]()
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        pieces += [raw[end : edit.start], edit.json]
        end = edit.end
    return [*pieces, raw[end:]]


def _text_part(text: str) -> bytes:
    return msgspec.json.encode({"type": "text", "text": text})
