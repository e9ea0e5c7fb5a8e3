"""What a file is, by its bytes. The name and the media type are only hints for formats that have no signature."""

import re
from enum import Enum

from cadenza.documents.formats.archive import Archive
from cadenza.documents.records import Unreadable


class Kind(Enum):
    """A format that can be read."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"
    MAIL = "mail"
    PDF = "pdf"
    ZIP = "zip"


OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")
PDF_WITHIN_BYTES = 1024
UNSUPPORTED = (
    (b"\x89PNG\r\n\x1a\n", "it is a PNG image"),
    (b"\xff\xd8\xff", "it is a JPEG image"),
    (b"GIF8", "it is a GIF image"),
    (b"II*\0", "it is a TIFF image"),
    (b"MM\0*", "it is a TIFF image"),
    (b"\x1f\x8b", "it is a gzip archive"),
    (b"BZh", "it is a bzip2 archive"),
    (b"\xfd7zXZ\0", "it is an xz archive"),
    (b"\x28\xb5\x2f\xfd", "it is a zstd archive"),
    (b"7z\xbc\xaf\x27\x1c", "it is a 7z archive"),
    (b"Rar!\x1a\x07", "it is a RAR archive"),
    (b"\x7fELF", "it is a program"),
    (b"MZ\x90\0", "it is a program"),
    (b"ID3", "it is an audio file"),
    (b"OggS", "it is an audio file"),
    (b"SQLite format 3\0", "it is a database"),
    (b"{\\rtf", "it is RTF, which cannot be read; save it as DOCX or PDF"),
)
MAIL_HEADER = re.compile(
    rb"(?:from|to|date|subject|received|return-path|delivered-to|message-id|mime-version|content-type|x-[\w-]+):[ \t]",
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
    raise Unreadable("it is a ZIP archive; attach the files in it one by one")


def _refuse(data: bytes) -> None:
    if data.startswith(OLE):
        if ENCRYPTED_PACKAGE in data:
            raise Unreadable("it is encrypted")
        raise Unreadable("it is in an old format of Office or Outlook; save it as DOCX, XLSX, PPTX, EML or PDF")
    for signature, reason in UNSUPPORTED:
        if data.startswith(signature):
            raise Unreadable(reason)
    if data[:4] == b"RIFF" or data[4:8] == b"ftyp":
        raise Unreadable("it is an image, audio or video file")
