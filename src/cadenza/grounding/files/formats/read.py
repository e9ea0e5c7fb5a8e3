"""The face of the formats: bytes to sections of text.

What a file is, its bytes say; its name and media type decide only between kinds of text. Sections that have no text are
left out. A fault of a parser that is not one of the expected ones is not caught here, but by the child.
"""

from collections.abc import Callable

import msgspec

from cadenza.grounding.files.formats.archive import Archive
from cadenza.grounding.files.formats.book import read_book
from cadenza.grounding.files.formats.kinds import Kind, kind_of, office_kind
from cadenza.grounding.files.formats.limits import Allowance, FormatLimits
from cadenza.grounding.files.formats.mail import read_mail
from cadenza.grounding.files.formats.open_document import read_open_document
from cadenza.grounding.files.formats.package import Package
from cadenza.grounding.files.formats.pdf import read_pdf
from cadenza.grounding.files.formats.sheets import read_sheets
from cadenza.grounding.files.formats.slides import read_slides
from cadenza.grounding.files.formats.text import clean, decode, decode_file, known_charset
from cadenza.grounding.files.formats.web_page import decode_html, html_file, main_text
from cadenza.grounding.files.formats.word import read_word
from cadenza.grounding.files.records import PageText, Section, Unreadable

DEFAULT_LIMITS = FormatLimits()
NO_TEXT = "it has no text"
LONG_LINE_CHARS = 2_000
OFFICE: dict[str, Callable[[Package, Allowance], list[Section]]] = {
    "word": read_word,
    "sheets": read_sheets,
    "slides": read_slides,
}


def read_document(name: str, media_type: str, data: bytes, limits: FormatLimits = DEFAULT_LIMITS) -> list[Section]:
    return _read(name, media_type, data, Allowance(limits))


def read_page(url: str, content_type: str, data: bytes, limits: FormatLimits = DEFAULT_LIMITS) -> PageText:
    allowance = Allowance(limits)
    media_type, _, parameters = content_type.partition(";")
    charset = _charset(parameters)
    kind = kind_of(url.partition("#")[0].partition("?")[0], media_type or "text/html", data)
    if kind is Kind.HTML:
        title, text = main_text(decode_html(data, charset), allowance)
        return PageText(clean(title), _kept([Section("", text)]))
    if kind in {Kind.TEXT, Kind.JSON} and charset and (codec := known_charset(charset)):
        return PageText("", _kept([Section("", _text(decode(data, codec), kind, allowance))]))
    return PageText("", _read(url, media_type, data, allowance))


def _read(name: str, media_type: str, data: bytes, allowance: Allowance) -> list[Section]:
    if not data:
        raise Unreadable("it is empty")
    kind = kind_of(name, media_type, data)
    if kind is Kind.ZIP:
        return _kept(_read_archive(data, allowance))
    if kind is Kind.PDF:
        return _kept(read_pdf(data, allowance))
    if kind is Kind.MAIL:
        return _kept(read_mail(data, allowance, _read))
    if kind is Kind.HTML:
        return _kept([Section("", html_file(decode_html(data), allowance))])
    return _kept([Section("", _text(decode_file(data), kind, allowance))])


def _read_archive(data: bytes, allowance: Allowance) -> list[Section]:
    archive = Archive(data, allowance)
    kind = office_kind(archive)
    if kind == "book":
        return read_book(archive, allowance)
    if kind == "open":
        return read_open_document(archive, allowance)
    return OFFICE[kind](Package(archive), allowance)


def _text(text: str, kind: Kind, allowance: Allowance) -> str:
    allowance.take_chars(len(text))
    if kind is Kind.JSON and len(text) > LONG_LINE_CHARS and "\n" not in text.strip():
        return _indented(text, allowance)
    return text


def _indented(text: str, allowance: Allowance) -> str:
    """JSON that is all on one line gets lines, so that it can be split into passages."""
    try:
        formatted = msgspec.json.format(text, indent=1)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return text
    allowance.take_chars(max(0, len(formatted) - len(text)))
    return formatted


def _kept(sections: list[Section]) -> list[Section]:
    cleaned = (Section(clean(one.label).replace("\n", " "), clean(one.text).strip("\n")) for one in sections)
    kept = [one for one in cleaned if one.text.strip()]
    if not kept:
        raise Unreadable(NO_TEXT)
    return kept


def _charset(parameters: str) -> str:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip()
    return ""
