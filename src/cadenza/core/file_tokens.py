"""How many tokens a model may count for a file, image or sound that is sent to it. Only its beginning is looked at.

              usual         at most: credit is held for it
text, other   bytes / 4     bytes
PDF           bytes / 240   bytes; up to 64 KiB, 4,600 a page if that is more
Office        bytes / 40    bytes
image         1,024         by its pixels, up to 48,169 (image_tokens.py)
audio, video  bytes / 240   bytes / 24

Some tokenizers make a token of every digit, so that a table of numbers has nearly as many tokens as bytes.
Providers count the text and the picture of each page of a PDF: Gemini 258 to 560 tokens, OpenAI about 1,500, Anthropic
1,500 to 3,000 for the text and 1,600 for the picture. A page of text takes 2 KB and more, a scanned one 100 KB. The XML
of an Office file is packed ten to one, and a third of it is text.
"""

import binascii
import re
from enum import Enum

import msgspec

from cadenza.core.image_tokens import HEAD_BYTES, IMAGE_TOKENS, IMAGE_TOKENS_MAX, IMAGES, most_image_tokens

PAGE_TOKENS = 4_600
START_CHARS = 2_048  # of base64: a PDF may begin with other bytes
PAGES_WITHIN_BYTES = 64 * 1024  # of a larger PDF only the bytes count: 20 of this size hold up the loop for 30 ms
URL_HEAD = re.compile(rb"data:([^,;]{0,100})((?:;[^,;]{0,100}){0,8}),", re.IGNORECASE)
PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
TEXT_TYPES = (b"text/", b"application/json", b"application/xml", b"message/")
URL_ALPHABET = bytes.maketrans(b"-_", b"+/")


class Kind(Enum):
    """What a file is, as far as its tokens depend on it."""

    TEXT = "text"
    PDF = "pdf"
    OFFICE = "office"
    IMAGE = "image"
    SOUND = "sound"
    OTHER = "other"


OFFICE = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")
SOUNDS = (b"ID3", b"OggS", b"fLaC", b"RIFF", b"\xff\xfb", b"\xff\xf3", b"\xff\xf1", b"\x1aE\xdf\xa3")


class FileTokens(msgspec.Struct, frozen=True):
    """The tokens of a file: the usual number, and the most. `is_certain`: no model can count more."""

    usual: int
    most: int
    is_certain: bool = False


def tokens_of_file(data: msgspec.Raw) -> FileTokens:
    """`data` is the `file_data` of a part, as it stands in the JSON, with its quotes."""
    raw = memoryview(data)
    media_type, start = _beginning(raw)
    if start is None:
        return _tokens(Kind.TEXT, raw.nbytes)
    kind, size_bytes = _kind(media_type, start), raw.nbytes * 3 // 4
    if kind is Kind.IMAGE:
        return FileTokens(IMAGE_TOKENS, most_image_tokens(_image_head(raw), is_low=False))
    pages = _pages(raw) if kind is Kind.PDF and size_bytes <= PAGES_WITHIN_BYTES else 0
    return _tokens(kind, size_bytes, pages)


def tokens_of_image(url: msgspec.Raw, *, is_low: bool) -> FileTokens | None:
    """`url` is the address of an image part, as it stands in the JSON. None if its data is not in the address."""
    media_type, start = _beginning(memoryview(url))
    if start is None or _kind(media_type, start) is not Kind.IMAGE:
        return None
    return FileTokens(IMAGE_TOKENS, most_image_tokens(_image_head(memoryview(url)), is_low=is_low))


def tokens_of_sound(data: msgspec.Raw) -> FileTokens | None:
    """`data` is that of an audio part, as it stands in the JSON. None if it is no known kind of sound."""
    _, start = _beginning(memoryview(data))
    if start is None or _kind(b"audio/", start) is not Kind.SOUND:
        return None
    return _tokens(Kind.SOUND, len(data) * 3 // 4)


def _beginning(raw: memoryview) -> tuple[bytes, bytes | None]:
    """The media type of a data URL, and the first bytes of what is in base64; None if the data is not in base64."""
    head = bytes(raw[1 : 1 + START_CHARS]).replace(b"\\/", b"/")
    url = URL_HEAD.match(head)
    if url and b"base64" not in url[2].lower():
        return b"", None
    return url[1].strip().lower() if url else b"", _decoded(head[url.end() if url else 0 :])


def _kind(media_type: bytes, start: bytes) -> Kind:
    """Images and sounds have few tokens, so both their type and their bytes must say it: a model may go by either."""
    if media_type.startswith(TEXT_TYPES):
        return Kind.TEXT
    if b"%PDF-" in start:
        return Kind.PDF
    if start.startswith(OFFICE):
        return Kind.OFFICE
    if media_type.startswith(b"image/") and start.startswith(IMAGES):
        return Kind.IMAGE
    if media_type.startswith((b"audio/", b"video/")) and (start.startswith(SOUNDS) or start[4:8] == b"ftyp"):
        return Kind.SOUND
    return Kind.OTHER if b"\0" in start else Kind.TEXT


def _tokens(kind: Kind, size_bytes: int, pages: int = 0) -> FileTokens:
    match kind:
        case Kind.TEXT | Kind.OTHER:
            return FileTokens(size_bytes // 4, size_bytes, is_certain=kind is Kind.TEXT)
        case Kind.PDF:
            return FileTokens(size_bytes // 240, max(size_bytes, max(pages, 1) * PAGE_TOKENS))
        case Kind.OFFICE:
            return FileTokens(size_bytes // 40, size_bytes)
        case Kind.IMAGE:
            return FileTokens(IMAGE_TOKENS, IMAGE_TOKENS_MAX)
        case Kind.SOUND:
            return FileTokens(size_bytes // 240, size_bytes // 24)


def _image_head(raw: memoryview) -> bytes:
    text = bytes(raw[1 : 1 + HEAD_BYTES * 4 // 3]).replace(b"\\/", b"/")
    return _decoded(text[text.find(b",") + 1 :])


def _pages(raw: memoryview) -> int:
    """The pages that can be seen without unpacking anything."""
    text = bytes(raw[1:-1]).replace(b"\\/", b"/")
    return len(PAGE.findall(_decoded(text[text.find(b",") + 1 :])))


def _decoded(base64: bytes) -> bytes:
    """As much of it as is base64; what cannot be decoded is empty."""
    digits = base64.translate(URL_ALPHABET, b" \t\r\n").rstrip(b'="\\')
    try:
        return binascii.a2b_base64(digits[: len(digits) // 4 * 4])
    except binascii.Error:
        return b""
