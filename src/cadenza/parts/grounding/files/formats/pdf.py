"""PDF to text by PDFium, page by page. Forms and JavaScript stay off, nothing is rendered.

What was filled into a form, and the notes that readers have added, are annotations of a page and follow its text.
"""

import ctypes

import pypdfium2
from pypdfium2 import raw as pdfium

from cadenza.parts.grounding.files.formats.source import ReadBudget, SourceFile
from cadenza.parts.grounding.files.records import IS_LOCKED, Section, Unreadable

SIGNATURE = b"%PDF-"
PASSWORD = 4  # FPDF_ERR_PASSWORD
SECURITY = 5
FIELD = pdfium.FPDF_ANNOT_WIDGET
NOTES = frozenset(
    {
        pdfium.FPDF_ANNOT_TEXT,
        pdfium.FPDF_ANNOT_FREETEXT,
        pdfium.FPDF_ANNOT_HIGHLIGHT,
        pdfium.FPDF_ANNOT_UNDERLINE,
        pdfium.FPDF_ANNOT_SQUIGGLY,
        pdfium.FPDF_ANNOT_STRIKEOUT,
        pdfium.FPDF_ANNOT_STAMP,
        pdfium.FPDF_ANNOT_CARET,
        pdfium.FPDF_ANNOT_SQUARE,
        pdfium.FPDF_ANNOT_CIRCLE,
    }
)
UNSEEN = pdfium.FPDF_ANNOT_FLAG_HIDDEN | pdfium.FPDF_ANNOT_FLAG_NOVIEW
ANNOTATION_COST = 20  # in characters, charged for each annotation in addition to its text, because it takes time
VALUE_BYTES = 1024  # of most values
NO_TEXT = "it has no text; it may be a scan"
SCANNED = "[this page has no text; it may be a scan]"
DAMAGED = "[this page is damaged and cannot be read]"
NOTHING = frozenset({"", SCANNED, DAMAGED})


def is_pdf(file: SourceFile) -> bool:
    """By its signature. If the name or media type says PDF, other bytes may come before it."""
    is_said = file.name.endswith(".pdf") or file.media_type == "application/pdf"
    return file.start.lstrip().startswith(SIGNATURE) or (is_said and SIGNATURE in file.start)


def read_pdf(file: SourceFile) -> list[Section]:
    budget = file.budget
    try:
        document = pypdfium2.PdfDocument(file.data)
    except pypdfium2.PdfiumError as error:
        is_encrypted = getattr(error, "err_code", None) in {PASSWORD, SECURITY}
        raise Unreadable(IS_LOCKED if is_encrypted else "it is a damaged or incomplete PDF; save it again") from None
    try:
        pages = len(document)
        budget.take_pages(pages, "pages")
        texts = [_page(document, index, budget) for index in range(pages)]
    finally:
        document.close()
    if all(text in NOTHING for text in texts):
        raise Unreadable(NO_TEXT if pages else "it has no pages")
    return [Section(f"page {number}", text) for number, text in enumerate(texts, 1)]


def _page(document: pypdfium2.PdfDocument, index: int, budget: ReadBudget) -> str:
    """The text of a page, or a note why it has none; empty for a blank page."""
    try:
        page = document[index]
    except pypdfium2.PdfiumError:
        return DAMAGED
    try:
        text_page = page.get_textpage()
        try:
            budget.take_chars(text_page.count_chars())
            text: str = text_page.get_text_bounded(errors="replace")
        finally:
            text_page.close()
        annotated = _annotations(page, budget)
        is_blank = pdfium.FPDFPage_CountObjects(page) <= 0
    except pypdfium2.PdfiumError:
        return DAMAGED
    finally:
        page.close()
    return "\n\n".join(filter(None, (text.strip() or ("" if is_blank else SCANNED), annotated)))


def _annotations(page: pypdfium2.PdfPage, budget: ReadBudget) -> str:
    """The form fields that are filled in, and the notes."""
    count = pdfium.FPDFPage_GetAnnotCount(page)
    if count <= 0:
        return ""
    budget.take_chars(ANNOTATION_COST * count)
    lines = [_annotation(page, index, budget) for index in range(count)]
    return "\n".join(filter(None, lines))


def _annotation(page: pypdfium2.PdfPage, index: int, budget: ReadBudget) -> str:
    annotation = pdfium.FPDFPage_GetAnnot(page, index)
    if not annotation:
        return ""
    try:
        kind = pdfium.FPDFAnnot_GetSubtype(annotation)
        if (kind != FIELD and kind not in NOTES) or pdfium.FPDFAnnot_GetFlags(annotation) & UNSEEN:
            return ""
        if kind != FIELD:
            text = _value(annotation, b"Contents", budget)
            return f"[note: {text}]" if text else ""
        value = _value(annotation, b"V", budget)
        name = _value(annotation, b"TU", budget) or _value(annotation, b"T", budget) or "without a name"
        return f"[field {name}: {value}]" if value and value != "Off" else ""
    finally:
        pdfium.FPDFPage_CloseAnnot(annotation)


def _value(annotation: object, key: bytes, budget: ReadBudget) -> str:
    """A text value of an annotation, on one line."""
    buffer = (ctypes.c_ushort * (VALUE_BYTES // 2))()
    length = pdfium.FPDFAnnot_GetStringValue(annotation, key, buffer, VALUE_BYTES)
    if length <= 2:
        return ""
    budget.take_chars(length // 2)
    if length > VALUE_BYTES:
        buffer = (ctypes.c_ushort * (length // 2))()
        pdfium.FPDFAnnot_GetStringValue(annotation, key, buffer, length)
    return " ".join(bytes(buffer)[: length - 2].decode("utf-16-le", "replace").split())
