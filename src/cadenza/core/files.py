"""Files that clients send: their names, the data URLs that they come in, and what they are by their first bytes."""

import binascii
from enum import Enum, auto

import msgspec

from cadenza.core.content import Content

NAME_CHARS_MAX = 120
PATH_CHARS_MAX = 4096  # the end of a longer one counts
SUFFIX_CHARS_MAX = 16
STANDARD_ALPHABET = bytes.maketrans(b"-_", b"+/")
BLANKS = b" \t\r\n\f\v"


def clean_name(name: str) -> str:
    """The last part of a path, without control characters, cut to a maximum length. The suffix is kept."""
    base = "".join(filter(str.isprintable, name[-PATH_CHARS_MAX:])).replace("\\", "/").rpartition("/")[2].strip()
    if len(base) > NAME_CHARS_MAX:
        stem, dot, suffix = base.rpartition(".")
        suffix = f"{dot}{suffix}" if stem and len(suffix) < SUFFIX_CHARS_MAX else ""
        base = base[: NAME_CHARS_MAX - len(suffix)] + suffix
    return base or "file"


class FileType(Enum):
    """A file type with a signature. Text formats have none."""

    PDF = auto()
    ZIP = auto()  # Office files are ZIP archives
    OLE = auto()  # old Office and Outlook files, and encrypted new ones
    RTF = auto()
    PNG = auto()
    JPEG = auto()
    GIF = auto()
    TIFF = auto()
    BMP = auto()
    WEBP = auto()
    HEIC = auto()
    AVIF = auto()
    MP3 = auto()
    MPEG_AUDIO = auto()  # without a tag
    OGG = auto()
    FLAC = auto()
    WAV = auto()
    M4A = auto()
    MP4 = auto()
    AVI = auto()
    MATROSKA = auto()
    GZIP = auto()
    BZIP2 = auto()
    XZ = auto()
    ZSTD = auto()
    SEVEN_ZIP = auto()
    RAR = auto()
    PROGRAM = auto()
    SQLITE = auto()


SIGNATURES = (
    (b"%PDF-", FileType.PDF),
    (b"PK\x03\x04", FileType.ZIP),
    (b"PK\x05\x06", FileType.ZIP),
    (b"PK\x07\x08", FileType.ZIP),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", FileType.OLE),
    (b"{\\rtf", FileType.RTF),
    (b"\x89PNG\r\n\x1a\n", FileType.PNG),
    (b"\xff\xd8\xff", FileType.JPEG),
    (b"GIF8", FileType.GIF),
    (b"II*\0", FileType.TIFF),
    (b"MM\0*", FileType.TIFF),
    (b"BM", FileType.BMP),
    (b"ID3", FileType.MP3),
    (b"\xff\xfb", FileType.MPEG_AUDIO),
    (b"\xff\xf3", FileType.MPEG_AUDIO),
    (b"\xff\xf1", FileType.MPEG_AUDIO),
    (b"OggS", FileType.OGG),
    (b"fLaC", FileType.FLAC),
    (b"\x1aE\xdf\xa3", FileType.MATROSKA),
    (b"\x1f\x8b", FileType.GZIP),
    (b"BZh", FileType.BZIP2),
    (b"\xfd7zXZ\0", FileType.XZ),
    (b"\x28\xb5\x2f\xfd", FileType.ZSTD),
    (b"7z\xbc\xaf\x27\x1c", FileType.SEVEN_ZIP),
    (b"Rar!\x1a\x07", FileType.RAR),
    (b"\x7fELF", FileType.PROGRAM),
    (b"MZ\x90\0", FileType.PROGRAM),
    (b"SQLite format 3\0", FileType.SQLITE),
)
RIFF_FORMS = {b"WEBP": FileType.WEBP, b"WAVE": FileType.WAV}
BRANDS = {b"heic": FileType.HEIC, b"mif1": FileType.HEIC, b"avif": FileType.AVIF, b"M4A ": FileType.M4A}


def file_type(start: bytes) -> FileType | None:
    """The type of a file that begins with these bytes. A text may begin like a BMP, or like MPEG audio."""
    if start[:4] == b"RIFF":
        return RIFF_FORMS.get(start[8:12], FileType.AVI)
    if start[4:8] == b"ftyp":
        return BRANDS.get(start[8:12], FileType.MP4)
    return next((one for signature, one in SIGNATURES if start.startswith(signature)), None)


class DataUrl(Content, msgspec.Struct, frozen=True):
    """The head of a data URL, and where its payload begins."""

    media_type: str
    is_base64: bool
    payload_start: int


def parse_data_url(url: str) -> DataUrl | None:
    """None if it is not a data URL. ValueError if it has no comma."""
    if url[:5].lower() != "data:":
        return None
    comma = url.index(",")
    media_type, *parameters = (part.strip().lower() for part in url[5:comma].split(";"))
    return DataUrl(media_type, "base64" in parameters, comma + 1)


def decode_base64(text: bytes) -> bytes:
    """With or without padding, in the standard or the URL-safe alphabet, with or without line breaks. ValueError."""
    digits = text.translate(STANDARD_ALPHABET, BLANKS).rstrip(b"=")
    return binascii.a2b_base64(digits + b"=" * (-len(digits) % 4), strict_mode=True)
