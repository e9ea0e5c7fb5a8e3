"""Finds positions in the raw JSON of a message: its content, its parts, the first words of the user."""

import re

import msgspec

from cadenza.core.content import Content

RAW_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
RAW_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
GAP = re.compile(rb"[\s,\[]*+")
_KEY = re.compile(rb'[\s,{]*+"(?:[^"\\]|\\.)*+"\s*+:\s*+')
_BLANK = re.compile(rb"\s*+")


class _Text(Content, msgspec.Struct):
    type: str
    text: str | None = None


_TEXT = msgspec.json.Decoder(_Text)


def find_content(message: msgspec.Raw) -> tuple[int, int] | None:
    """The span of the content in the JSON of a message. None if the message has a field twice.

    The fields are followed one by one, because another field may have the same bytes as the content.
    """
    raw, end, found = memoryview(message), 0, None
    for name, value in RAW_FIELDS.decode(message).items():
        start = skip(_KEY, raw, end)
        end = start + memoryview(value).nbytes
        if raw[start:end] != memoryview(value):
            return None
        if name == "content":
            found = start, end
    return found if bytes(raw[end:]).strip() == b"}" else None


def find_words(message: msgspec.Raw) -> int | None:
    """Where the user's own words begin: the quote of a text, or the first part that is a text and not blank.

    Without any, it is the first character inside the brackets that is not white space. None if a field is repeated.
    """
    raw, span = memoryview(message), find_content(message)
    if span is None or raw[span[0]] != ord("["):
        return span and span[0]
    first, end = skip(_BLANK, raw, span[0] + 1), span[0]
    for item in RAW_ITEMS.decode(raw[slice(*span)]):
        start = skip(GAP, raw, end)
        end = start + memoryview(item).nbytes
        part = _TEXT.decode(item)
        if part.type == "text" and part.text and not part.text.isspace():
            return start
    return first


def skip(pattern: re.Pattern[bytes], raw: memoryview, start: int) -> int:
    match = pattern.match(raw, start)
    return match.end() if match else start
