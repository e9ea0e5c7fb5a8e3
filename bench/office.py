"""Files as people's programs write them: each is made by the library that is used for it."""

import io
from collections.abc import Iterable, Mapping, Sequence
from email.message import EmailMessage
from typing import Any

import docx
import fpdf
import openpyxl
import pptx

Rows = Iterable[Sequence[Any]]


def pdf_of(pages: Iterable[str]) -> bytes:
    pdf = fpdf.FPDF()
    pdf.set_font("Helvetica", size=11)
    for page in pages:
        pdf.add_page()
        pdf.multi_cell(0, 6, page)
    return bytes(pdf.output())


def docx_of(parts: Iterable[tuple[str, Sequence[str]]], level: int = 1, title: str = "", table: Rows = ()) -> bytes:
    """Headings with their paragraphs, and a table at the end."""
    document = docx.Document()
    if title:
        document.add_heading(title, 0)
    for heading, paragraphs in parts:
        document.add_heading(heading, level)
        for paragraph in paragraphs:
            document.add_paragraph(paragraph)
    if rows := list(table):
        made = document.add_table(0, len(rows[0]))
        for row in rows:
            for cell, text in zip(made.add_row().cells, row, strict=True):
                cell.text = text
    return _saved(document)


def xlsx_of(sheets: Mapping[str, Rows]) -> bytes:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    return _saved(book)


def pptx_of(slides: Iterable[tuple[str, str]]) -> bytes:
    show = pptx.Presentation()
    for title, text in slides:
        slide = show.slides.add_slide(show.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = text
    return _saved(show)


def eml_of(headers: Mapping[str, str], text: str, name: str, kind: str, attached: bytes) -> bytes:
    message = EmailMessage()
    for header, value in headers.items():
        message[header] = value
    message.set_content(text)
    main, _, sub = kind.partition("/")
    message.add_attachment(attached, maintype=main, subtype=sub, filename=name)
    return bytes(message)


def _saved(document: Any) -> bytes:  # noqa: ANN401 of three libraries
    target = io.BytesIO()
    document.save(target)
    return target.getvalue()
