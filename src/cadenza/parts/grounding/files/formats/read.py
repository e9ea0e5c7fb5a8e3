"""The bytes of a file or web page to sections of text: the table of formats.

The bytes decide what a file is. Its name and its media type only choose between text formats. Every other fault that a
parser raises is caught by the child, not here.
"""

from collections.abc import Callable

from cadenza.core.files import FileType
from cadenza.parts.grounding.files.formats.mail import is_mail, read_mail
from cadenza.parts.grounding.files.formats.pdf import is_pdf, read_pdf
from cadenza.parts.grounding.files.formats.sheets import is_sheets, read_sheets
from cadenza.parts.grounding.files.formats.slides import is_slides, read_slides
from cadenza.parts.grounding.files.formats.source import FormatLimits, ReadBudget, SourceFile
from cadenza.parts.grounding.files.formats.text import clean, is_json, read_json, read_text
from cadenza.parts.grounding.files.formats.web_page import is_html, read_html, read_main_text
from cadenza.parts.grounding.files.formats.word import is_word, read_word
from cadenza.parts.grounding.files.records import IS_LOCKED, PageText, PartType, Section, Unreadable

DEFAULT_LIMITS = FormatLimits()
NO_TEXT = "it has no text"
LABEL_CHARS_MAX = 120
TITLE_CHARS_MAX = 300
ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")
IMAGE = "it is {} image; save its text as PDF, DOCX or plain text"
ARCHIVE = "it is {} archive; unpack it and use the files in it"
AUDIO = "it is an audio file; save what is said as text"
VIDEO = "it is a video file; save what is said as text"
NOT_READABLE = {  # why files of a type are not read
    FileType.OLE: "it is in an old format of Office or Outlook; save it as DOCX, XLSX, PPTX, EML or PDF",
    FileType.RTF: "it is RTF, which cannot be read; save it as DOCX or PDF",
    FileType.PNG: IMAGE.format("a PNG"),
    FileType.JPEG: IMAGE.format("a JPEG"),
    FileType.GIF: IMAGE.format("a GIF"),
    FileType.WEBP: IMAGE.format("a WebP"),
    FileType.TIFF: IMAGE.format("a TIFF"),
    FileType.HEIC: IMAGE.format("a HEIC"),
    FileType.AVIF: IMAGE.format("an AVIF"),
    **dict.fromkeys((FileType.MP3, FileType.OGG, FileType.FLAC, FileType.WAV, FileType.M4A), AUDIO),
    **dict.fromkeys((FileType.MP4, FileType.AVI, FileType.MATROSKA), VIDEO),
    FileType.ZIP: ARCHIVE.format("a ZIP"),
    FileType.GZIP: ARCHIVE.format("a gzip"),
    FileType.BZIP2: ARCHIVE.format("a bzip2"),
    FileType.XZ: ARCHIVE.format("an xz"),
    FileType.ZSTD: ARCHIVE.format("a zstd"),
    FileType.SEVEN_ZIP: ARCHIVE.format("a 7z"),
    FileType.RAR: ARCHIVE.format("a RAR"),
    FileType.PROGRAM: "it is a program; only documents and text are read",
    FileType.SQLITE: "it is a database; export what you need as CSV",
}
OPEN_DOCUMENT = "it is an OpenDocument file or an e-book; save it as DOCX, XLSX, PPTX or PDF"
PART_TYPES: dict[FileType, PartType] = {  # the content part in which a model may take such a file as it is
    **dict.fromkeys((FileType.PNG, FileType.JPEG, FileType.GIF, FileType.WEBP), "image_url"),
    **dict.fromkeys((FileType.MP3, FileType.OGG, FileType.FLAC, FileType.WAV, FileType.M4A), "input_audio"),
}


def read_document(name: str, media_type: str, data: bytes, limits: FormatLimits = DEFAULT_LIMITS) -> list[Section]:
    return _read(SourceFile(name, media_type, data, ReadBudget(limits)))


def read_page(url: str, content_type: str, data: bytes, limits: FormatLimits = DEFAULT_LIMITS) -> PageText:
    """Of a page in HTML, the main text. Other files are read like a document."""
    media_type, _, parameters = content_type.partition(";")
    path = url.partition("#")[0].partition("?")[0]
    file = SourceFile(path, media_type or "text/html", data, ReadBudget(limits), _charset(parameters))
    if find_reader(file) is not read_html:
        return PageText("", _read(file))
    page = read_main_text(file)
    return PageText(_one_line(page.title, TITLE_CHARS_MAX), _with_text(page.sections))


def find_reader(file: SourceFile) -> Callable[[SourceFile], list[Section]]:
    return next(read for matches, read in FORMATS if matches(file))


def _read(file: SourceFile) -> list[Section]:
    if not file.data:
        raise Unreadable("it is empty")
    return _with_text(find_reader(file)(file))


def _refuse(file: SourceFile) -> list[Section]:
    assert file.type
    if file.type is FileType.OLE and ENCRYPTED_PACKAGE in file.data:
        raise Unreadable(IS_LOCKED)
    if file.zip and file.zip.has("mimetype"):
        raise Unreadable(OPEN_DOCUMENT)
    raise Unreadable(NOT_READABLE[file.type], PART_TYPES.get(file.type))


FORMATS: tuple[tuple[Callable[[SourceFile], bool], Callable[[SourceFile], list[Section]]], ...] = (
    (is_pdf, read_pdf),  # the first that matches
    (is_word, read_word),
    (is_sheets, read_sheets),
    (is_slides, read_slides),
    (lambda file: file.type in NOT_READABLE, _refuse),
    (is_html, read_html),
    (is_mail, lambda file: read_mail(file, _read)),
    (is_json, read_json),
    (lambda _: True, read_text),
)


def _with_text(sections: list[Section]) -> list[Section]:
    """The sections that have text, cleaned."""
    cleaned = (Section(_one_line(one.label, LABEL_CHARS_MAX), clean(one.text).strip("\n")) for one in sections)
    kept = [one for one in cleaned if one.text.strip()]
    if not kept:
        raise Unreadable(NO_TEXT)
    return kept


def _one_line(text: str, chars_max: int) -> str:
    return " ".join(clean(text).split())[:chars_max]


def _charset(parameters: str) -> str:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip()
    return ""
