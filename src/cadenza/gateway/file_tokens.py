"""How many tokens a model may count for a file that is sent to it as it is. Only its beginning is looked at.

              usual         at most: credit is held for it
text, other   bytes / 4     bytes
PDF           bytes / 240   bytes; up to 64 KiB, 4,600 a page if that is more
Office        bytes / 40    bytes
image         1,024         8,192
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

IMAGE_TOKENS = 1024  # of a usual image; models differ
IMAGE_TOKENS_MAX = 8192
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
IMAGES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"II*\0", b"MM\0*", b"BM")
SOUNDS = (b"ID3", b"OggS", b"fLaC", b"RIFF", b"\xff\xfb", b"\xff\xf3", b"\xff\xf1", b"\x1aE\xdf\xa3")


class FileTokens(msgspec.Struct, frozen=True):
    """The tokens of a file: the usual number, and the most. `is_certain`: no model can count more."""

    usual: int
    most: int
    is_certain: bool = False


def tokens_of_file(data: msgspec.Raw) -> FileTokens:
    """`data` is the `file_data` of a part, as it stands in the JSON, with its quotes."""
    raw = memoryview(data)
    head = bytes(raw[1 : 1 + START_CHARS]).replace(b"\\/", b"/")
    url = URL_HEAD.match(head)
    if url and b"base64" not in url[2].lower():
        return _tokens(Kind.TEXT, raw.nbytes)
    size_bytes = raw.nbytes * 3 // 4
    kind = _kind(url[1].strip().lower() if url else b"", _decoded(head[url.end() if url else 0 :]))
    pages = _pages(raw) if kind is Kind.PDF and size_bytes <= PAGES_WITHIN_BYTES else 0
    return _tokens(kind, size_bytes, pages)


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
