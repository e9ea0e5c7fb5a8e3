"""PDF to text by PDFium, page by page. Forms and JavaScript stay off, nothing is rendered."""

import pypdfium2

from cadenza.documents.formats.limits import Allowance
from cadenza.documents.records import IS_LOCKED, Section, Unreadable

PASSWORD = 4  # FPDF_ERR_PASSWORD
SECURITY = 5
NO_TEXT = "it has no text; it may be a scan"


def read_pdf(data: bytes, allowance: Allowance) -> list[Section]:
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        is_encrypted = getattr(error, "err_code", None) in {PASSWORD, SECURITY}
        raise Unreadable(IS_LOCKED if is_encrypted else "it is a damaged or incomplete PDF; save it again") from None
    try:
        pages = len(document)
        allowance.take_pages(pages, "pages")
        texts = [_page(document, index, allowance) for index in range(pages)]
    finally:
        document.close()
    if not any(texts):
        raise Unreadable(NO_TEXT if pages else "it has no pages")
    return [Section(f"page {number}", text) for number, text in enumerate(texts, 1)]


def _page(document: pypdfium2.PdfDocument, index: int, allowance: Allowance) -> str:
    """The text of a page; none if the page is damaged."""
    try:
        page = document[index]
    except pypdfium2.PdfiumError:
        return ""
    try:
        text_page = page.get_textpage()
        try:
            allowance.take_chars(text_page.count_chars())
            text: str = text_page.get_text_bounded(errors="replace")
        finally:
            text_page.close()
    except pypdfium2.PdfiumError:
        return ""
    finally:
        page.close()
    return text.strip()
