"""The texts that are counted for a request: all of the JSON that goes upstream, and not a list of fields.

A message that is just a role and text counts as its text. Any other message counts as its whole JSON, with escapes
resolved: unknown fields, fields that are there twice, keys and numbers included. So does every other field of the
request. What is left out is data of images, audio and files (`excluded`), which has a count of its own.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

from cadenza.core.content import Content

NUMBER_BYTES_MAX = 32  # a number or a boolean of this length is a setting of the model, and no text

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_PART = rb'\{\s*+"type"\s*+:\s*+"text"\s*+,\s*+"text"\s*+:\s*+%b\s*+\}' % _STRING
_ROLE = rb'"role"\s*+:\s*+"(?:system|user|assistant)"'
_CONTENT = rb'"content"\s*+:\s*+(?:%b|\[\s*+%b(?:\s*+,\s*+%b)*+\s*+\])' % (_STRING, _PART, _PART)
_JUST_TEXT = re.compile(rb"\{\s*+(?:%b\s*+,\s*+%b|%b\s*+,\s*+%b)\s*+\}" % (_ROLE, _CONTENT, _CONTENT, _ROLE), re.DOTALL)
_BLANKS = bytes.maketrans(b"\t\r\n", b"   ")  # a JSON string cannot have them
_BEFORE_VALUE = b": \t\r\n"


class _TextPart(Content, msgspec.Struct):
    text: str


class _JustText(Content, msgspec.Struct):
    content: str | list[_TextPart]


_MESSAGE = msgspec.json.Decoder(_JustText)
_LITERAL = msgspec.json.Decoder(str)


def counted_texts(
    messages: Sequence[msgspec.Raw],
    fields: Mapping[str, msgspec.Raw],
    excluded: Mapping[int, Sequence[msgspec.Raw]],
) -> list[str]:
    """The texts of everything that is sent. `excluded` is the data that is left out, by the index of its message."""
    texts = list[str]()
    for index, raw in enumerate(messages):
        texts += texts_of_message(raw, excluded.get(index, ()))
    for raw in fields.values():
        texts += texts_of_field(raw)
    return texts


def sent_bytes(messages: Sequence[msgspec.Raw], fields: Mapping[str, msgspec.Raw]) -> int:
    """The bytes of everything that is sent, but for the names of the fields."""
    size_bytes = 0
    for raw in messages:
        size_bytes += len(raw)
    for raw in fields.values():
        size_bytes += len(raw)
    return size_bytes


def resolved(json: bytes) -> str:
    """The JSON as text, with the escapes in its strings resolved: it is read as one long string."""
    if b"\\" not in json:
        return json.decode()
    literal = json.translate(_BLANKS).replace(b"\\\\", b"\\u005c").replace(b'\\"', b"\\u0022").replace(b'"', b'\\"')
    return _LITERAL.decode(b'"%b"' % literal)


def texts_of_message(raw: msgspec.Raw, excluded: Sequence[msgspec.Raw] = ()) -> list[str]:
    """The texts of a message. Each one also counts for the tokens of a role and of separators."""
    if _JUST_TEXT.fullmatch(raw):
        content = _MESSAGE.decode(raw).content
        return [content] if isinstance(content, str) else ["", *[part.text for part in content]]
    return [resolved(without_data(bytes(raw), excluded))]


def without_data(json: bytes, excluded: Sequence[msgspec.Raw]) -> bytes:
    """The JSON without these strings: values of fields, in the order in which they occur.

    A quote after a colon or a blank begins a string: inside of a string it would follow a backslash. Another string
    with the same bytes may be taken instead, which makes no difference to the count.
    """
    kept, end = list[bytes](), 0
    for data in excluded:
        start = json.find(data, end)
        while start > 0 and json[start - 1] not in _BEFORE_VALUE:
            start = json.find(data, start + 1)
        if start > 0:
            kept.append(json[end:start])
            end = start + len(data)
    return b"".join([*kept, json[end:]])


def texts_of_field(raw: msgspec.Raw) -> list[str]:
    is_setting = len(raw) <= NUMBER_BYTES_MAX and memoryview(raw)[0] not in b'"[{'
    return [] if is_setting else [resolved(bytes(raw))]
