"""Puts reference material into the JSON of a message, without decoding what the client wrote around it."""

from collections.abc import Iterable

import msgspec


class Edit(msgspec.Struct, frozen=True):
    """New JSON for what stands from `start` to `end` in the JSON of a message."""

    start: int
    end: int
    json: bytes


def replace_part(start: int, end: int, text: str) -> Edit:
    """A part of the content becomes a part of type text."""
    return Edit(start, end, _text_part(text))


def insert_before(message: msgspec.Raw, words_start: int, text: str) -> Edit:
    """The text comes before the user's own words. `words_start` is what `find_words` found."""
    first = memoryview(message)[words_start]
    if first == ord('"'):
        return Edit(words_start + 1, words_start + 1, msgspec.json.encode(text)[1:-1])
    assert first in b"{]", "an array of parts"
    return Edit(words_start, words_start, _text_part(text) + (b"" if first == ord("]") else b","))


def apply_edits(message: msgspec.Raw, edits: Iterable[Edit]) -> list[bytes | memoryview]:
    """The pieces of the new message. Edits do not overlap."""
    raw, end, pieces = memoryview(message), 0, list[bytes | memoryview]()
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        pieces += [raw[end : edit.start], edit.json]
        end = edit.end
    return [*pieces, raw[end:]]


def _text_part(text: str) -> bytes:
    return msgspec.json.encode({"type": "text", "text": text})
