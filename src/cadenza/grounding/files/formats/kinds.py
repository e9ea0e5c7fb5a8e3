"""What a file is, by its bytes. The name and the media type are only hints for formats that have no signature."""

import re
from enum import Enum
from typing import NamedTuple

from cadenza.grounding.files.formats.archive import Archive
from cadenza.grounding.files.records import IS_LOCKED, PartType, Unreadable


class Kind(Enum):
    """A format that can be read."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"
    MAIL = "mail"
    PDF = "pdf"
    ZIP = "zip"


class NotReadable(NamedTuple):
    """Why files with a signature are not read, and the content part in which a model may take them as they are."""

    reason: str
    part_type: PartType | None = None


OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")
PDF_WITHIN_BYTES = 1024
UNPACK = "unpack it and use the files in it"
TEXT_OF_IT = "save its text as PDF, DOCX or plain text"
IMAGE = f"it is {{}} image; {TEXT_OF_IT}"
AUDIO = NotReadable("it is an audio file; save what is said as text", "input_audio")
VIDEO = NotReadable("it is a video file; save what is said as text")
PROGRAM = NotReadable("it is a program; only documents and text are read")
UNSUPPORTED = (
    (b"\x89PNG\r\n\x1a\n", NotReadable(IMAGE.format("a PNG"), "image_url")),
    (b"\xff\xd8\xff", NotReadable(IMAGE.format("a JPEG"), "image_url")),
    (b"GIF8", NotReadable(IMAGE.format("a GIF"), "image_url")),
    (b"II*\0", NotReadable(IMAGE.format("a TIFF"))),
    (b"MM\0*", NotReadable(IMAGE.format("a TIFF"))),
    (b"\x1f\x8b", NotReadable(f"it is a gzip archive; {UNPACK}")),
    (b"BZh", NotReadable(f"it is a bzip2 archive; {UNPACK}")),
    (b"\xfd7zXZ\0", NotReadable(f"it is an xz archive; {UNPACK}")),
    (b"\x28\xb5\x2f\xfd", NotReadable(f"it is a zstd archive; {UNPACK}")),
    (b"7z\xbc\xaf\x27\x1c", NotReadable(f"it is a 7z archive; {UNPACK}")),
    (b"Rar!\x1a\x07", NotReadable(f"it is a RAR archive; {UNPACK}")),
    (b"\x7fELF", PROGRAM),
    (b"MZ\x90\0", PROGRAM),
    (b"ID3", AUDIO),
    (b"OggS", AUDIO),
    (b"SQLite format 3\0", NotReadable("it is a database; export what you need as CSV")),
    (b"{\\rtf", NotReadable("it is RTF, which cannot be read; save it as DOCX or PDF")),
)
RIFF_KINDS = {b"WEBP": NotReadable(IMAGE.format("a WebP"), "image_url"), b"WAVE": AUDIO}
BRANDS = {
    b"heic": NotReadable(IMAGE.format("a HEIC")),
    b"mif1": NotReadable(IMAGE.format("a HEIC")),
    b"avif": NotReadable(IMAGE.format("an AVIF")),
    b"M4A ": AUDIO,
}
MAIL_HEADER = re.compile(
    rb"(?:from|to|cc|date|subject|sender|reply-to|received|return-path|delivered-to|message-id|mime-version|content-type|"
    rb"dkim-signature|arc-[\w-]+|x-[\w-]+):[ \t]",
    re.IGNORECASE,
)
HTML_START = re.compile(
    rb"(?:<!--.{0,1000}?-->\s*|<\?xml[^>]{0,200}>\s*)*<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL
)
OFFICE_PARTS = (  # a folder, or the main part where there are no folders
    (("word/", "document.xml"), "word"),
    (("xl/", "workbook.xml"), "sheets"),
    (("ppt/", "presentation.xml"), "slides"),
)
HTML_NAMES = (".html", ".htm", ".xhtml")
JSON_NAMES = (".json", ".geojson", ".ipynb")


def kind_of(name: str, media_type: str, data: bytes) -> Kind:
    start = data[:PDF_WITHIN_BYTES]
    name, media_type = name.lower().strip(), media_type.partition(";")[0].strip().lower()
    says_pdf = name.endswith(".pdf") or media_type == "application/pdf"  # such a file may begin with other bytes
    if start.lstrip().startswith(b"%PDF-") or (says_pdf and b"%PDF-" in start):
        return Kind.PDF
    if data.startswith((b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")):
        return Kind.ZIP
    _refuse(data)
    start = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if HTML_START.match(start) or name.endswith(HTML_NAMES) or media_type in {"text/html", "application/xhtml+xml"}:
        return Kind.HTML
    if (name.endswith(".eml") or media_type == "message/rfc822") and MAIL_HEADER.search(start):
        return Kind.MAIL
    if name.endswith(JSON_NAMES) or media_type == "application/json":
        return Kind.JSON
    return Kind.TEXT


def office_kind(archive: Archive) -> str:
    """Which document a ZIP archive is: word, slides, sheets, open, book."""
    names = archive.names
    if archive.has("[Content_Types].xml") or archive.has("_rels/.rels"):
        if archive.has("xl/workbook.bin"):
            raise Unreadable("it is a binary workbook (XLSB); save it as XLSX")
        for starts, kind in OFFICE_PARTS:
            if any(name.startswith(starts) for name in names):
                return kind
    if archive.has("mimetype") and (archive.has("content.xml") or archive.has("meta-inf/container.xml")):
        return "open" if archive.has("content.xml") else "book"
    raise Unreadable(f"it is a ZIP archive; {UNPACK}")


def _refuse(data: bytes) -> None:
    if data.startswith(OLE):
        if ENCRYPTED_PACKAGE in data:
            raise Unreadable(IS_LOCKED)
        raise Unreadable("it is in an old format of Office or Outlook; save it as DOCX, XLSX, PPTX, EML or PDF")
    for signature, why in UNSUPPORTED:
        if data.startswith(signature):
            raise Unreadable(*why)
    if data[:4] == b"RIFF":
        raise Unreadable(*RIFF_KINDS.get(data[8:12], VIDEO))
    if data[4:8] == b"ftyp":
        raise Unreadable(*BRANDS.get(data[8:12], VIDEO))
