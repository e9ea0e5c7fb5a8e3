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
from itertools import islice

import msgspec

from cadenza.core.files import BLANKS, STANDARD_ALPHABET, FileType, file_type, parse_data_url
from cadenza.core.image_tokens import HEAD_BYTES, IMAGE_TOKENS, most_image_tokens

PAGE_TOKENS = 4_600
START_CHARS = 2_048  # of base64: a PDF may begin with other bytes
PAGES_WITHIN_BYTES = 64 * 1024  # of a larger PDF only the bytes count
PAGES_MAX = 256  # are counted: no window has room for more
PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
TEXT_TYPES = ("text/", "application/json", "application/xml", "message/")
OFFICE = frozenset({FileType.ZIP, FileType.OLE})
IMAGES = frozenset({FileType.PNG, FileType.JPEG, FileType.GIF, FileType.TIFF, FileType.BMP, FileType.WEBP})
SOUNDS = frozenset(
    {
        *(FileType.MP3, FileType.MPEG_AUDIO, FileType.OGG, FileType.FLAC, FileType.WAV, FileType.M4A),
        *(FileType.MP4, FileType.AVI, FileType.MATROSKA),
    }
)


class CountedAs(Enum):
    """What a file is: bytes for each token as usual, and at most. The pixels of an image count instead."""

    TEXT = "text", 4, 1
    PDF = "pdf", 240, 1
    OFFICE = "office", 40, 1
    IMAGE = "image", 1, 1
    SOUND = "sound", 240, 24
    OTHER = "other", 4, 1

    def tokens(self, size_bytes: int) -> "FileTokens":
        assert self is not CountedAs.IMAGE
        _, usual_bytes, most_bytes = self.value
        return FileTokens(size_bytes // usual_bytes, size_bytes // most_bytes, is_certain=self is CountedAs.TEXT)


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
        return CountedAs.TEXT.tokens(raw.nbytes)
    kind, size_bytes = _kind(media_type, start), raw.nbytes * 3 // 4
    if kind is CountedAs.IMAGE:
        return FileTokens(IMAGE_TOKENS, most_image_tokens(_image_head(raw), is_low=False))
    tokens = kind.tokens(size_bytes)
    if kind is CountedAs.PDF:
        pages = _pages(raw) if size_bytes <= PAGES_WITHIN_BYTES else 0
        tokens = msgspec.structs.replace(tokens, most=max(tokens.most, max(pages, 1) * PAGE_TOKENS))
    return tokens


def tokens_of_image(url: msgspec.Raw, *, is_low: bool) -> FileTokens | None:
    """`url` is the address of an image part, as it stands in the JSON. None if its data is not in the address."""
    media_type, start = _beginning(memoryview(url))
    if start is None or _kind(media_type, start) is not CountedAs.IMAGE:
        return None
    return FileTokens(IMAGE_TOKENS, most_image_tokens(_image_head(memoryview(url)), is_low=is_low))


def tokens_of_sound(data: msgspec.Raw) -> FileTokens | None:
    """`data` is that of an audio part, as it stands in the JSON. None if its type is unknown."""
    _, start = _beginning(memoryview(data))
    if start is None or _kind("audio/", start) is not CountedAs.SOUND:
        return None
    return CountedAs.SOUND.tokens(len(data) * 3 // 4)


def _beginning(raw: memoryview) -> tuple[str, bytes | None]:
    """The media type of a data URL, and the first bytes of what is in base64; None if the data is not in base64."""
    head = _unescaped(raw[1 : 1 + START_CHARS])
    try:
        url = parse_data_url(head.decode("latin-1"))
    except ValueError:
        url = None
    if url is None:
        return "", _decoded(head)
    return (url.media_type, _decoded(head[url.payload_start :])) if url.is_base64 else ("", None)


def _kind(media_type: str, start: bytes) -> CountedAs:
    """Images and sounds have few tokens, so media type and bytes must agree: a provider may go by either."""
    if media_type.startswith(TEXT_TYPES):
        return CountedAs.TEXT
    if b"%PDF-" in start:
        return CountedAs.PDF
    type_ = file_type(start)
    if type_ in OFFICE:
        return CountedAs.OFFICE
    if media_type.startswith("image/") and type_ in IMAGES:
        return CountedAs.IMAGE
    if media_type.startswith(("audio/", "video/")) and type_ in SOUNDS:
        return CountedAs.SOUND
    return CountedAs.OTHER if b"\0" in start else CountedAs.TEXT


def _image_head(raw: memoryview) -> bytes:
    text = _unescaped(raw[1 : 1 + HEAD_BYTES * 4 // 3])
    return _decoded(text[text.find(b",") + 1 :])


def _pages(raw: memoryview) -> int:
    """The number of pages that are visible without unpacking anything."""
    text = _unescaped(raw[1:-1])
    return sum(1 for _ in islice(PAGE.finditer(_decoded(text[text.find(b",") + 1 :])), PAGES_MAX))


def _unescaped(json_text: memoryview) -> bytes:
    """JSON may have a backslash before a slash, and some programs write it."""
    return bytes(json_text).replace(b"\\/", b"/")


def _decoded(base64: bytes) -> bytes:
    """Decode leniently; empty if that is not possible."""
    digits = base64.translate(STANDARD_ALPHABET, BLANKS).rstrip(b'="\\')
    try:
        return binascii.a2b_base64(digits[: len(digits) // 4 * 4])
    except binascii.Error:
        return b""
