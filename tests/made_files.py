"""Files for the tests of formats: honest ones by the libraries that people use to write them, hostile ones by hand."""

import io
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from email.message import EmailMessage

import docx
import fpdf
import openpyxl
import pptx
from docx.document import Document
from pptx.util import Inches

CONTENT_TYPES = '<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>'
RELATIONS = (
    '<?xml version="1.0"?><Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{}'
    "</Relationships>"
)
RELATION = (
    '<Relationship Id="{}" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/{}" Target="{}"/>'
)
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
Make = Callable[[], bytes]


def make_pdf(pages: Sequence[str], password: str = "") -> bytes:
    pdf = fpdf.FPDF()
    pdf.set_font("Helvetica", size=12)
    for text in pages:
        pdf.add_page()
        if text:
            pdf.multi_cell(0, 6, text)
        else:
            pdf.rect(20, 20, 50, 50)
    if password:
        pdf.set_encryption(owner_password=password, user_password=password)
    return bytes(pdf.output())


def saved(document: Document | openpyxl.Workbook | pptx.presentation.Presentation) -> bytes:
    target = io.BytesIO()
    document.save(target)
    return target.getvalue()


def make_docx() -> bytes:
    document = docx.Document()
    document.add_heading("Annual report", 0)
    document.add_heading("Prices", 1)
    document.add_paragraph("Revenue grew by 12 % to 4,200 dollars.")
    document.add_paragraph("first point", style="List Bullet")
    document.add_paragraph("second point", style="List Bullet")
    table = document.add_table(2, 2)
    for index, text in enumerate(("Item", "Price", "Oat|meal", "3.20")):
        table.cell(index // 2, index % 2).text = text
    document.sections[0].header.paragraphs[0].text = "Invoice 4711"
    document.add_comment(document.paragraphs[2].runs, text="Check this figure.", author="Ada")
    return saved(document)


def make_xlsx() -> bytes:
    workbook = openpyxl.Workbook()
    sheet = workbook.active
    sheet.title = "Prices"
    for row in (("Item", "Price", "Since"), ("Oats", 3.2, date(2026, 3, 1)), ("Milk", 1.1, None), ("Sum", "=B2+B3")):
        sheet.append(row)
    sheet["B3"].number_format = "0%"
    other = workbook.create_sheet("Far & away")
    other["XFD1048576"] = True
    other["A1"] = "corner"
    return saved(workbook)


def make_pptx() -> bytes:
    show = pptx.Presentation()
    for title, body in (("Welcome", "Agenda\nQuestions"), ("Figures", "See the table")):
        slide = show.slides.add_slide(show.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = body
    table = slide.shapes.add_table(2, 2, Inches(1), Inches(3), Inches(4), Inches(1)).table
    for index, text in enumerate(("Year", "Sales", "2026", "77")):
        table.cell(index // 2, index % 2).text = text
    slide.notes_slide.notes_text_frame.text = "Mention the new shop."
    return saved(show)


def make_eml(attachments: Mapping[str, bytes], html: str = "") -> bytes:
    message = EmailMessage()
    message["From"] = "Zoë <zoe@example.org>"
    message["To"] = "sales@example.org"
    message["Subject"] = "Grüße und Preise"
    message["Date"] = "Mon, 02 Nov 2026 10:00:00 +0000"
    message["X-Secret"] = "not for the reader"
    if html:
        message.set_content(html, subtype="html")
    else:
        message.set_content("Please find the prices attached.\n")
        message.add_alternative("<p>The same in <b>HTML</b>.</p>", subtype="html")
    for name, data in attachments.items():
        message.add_attachment(data, maintype="application", subtype="octet-stream", filename=name)
    return bytes(message)


def make_zip(entries: Mapping[str, bytes | str]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return target.getvalue()


def make_word(body: str, more: Mapping[str, bytes | str] | None = None) -> bytes:
    """A DOCX of the least parts. `body` is the XML of its body, or a whole document with its declarations."""
    document = (
        body if body.startswith("<?xml") else f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>'
    )
    return make_zip(
        {
            "[Content_Types].xml": CONTENT_TYPES,
            "_rels/.rels": RELATIONS.format(RELATION.format("rId1", "officeDocument", "word/document.xml")),
            "word/document.xml": document,
            **(more or {}),
        }
    )


def make_sheet(rows: str, strings: str = "", merged: str = "") -> bytes:
    """An XLSX of the least parts, with one sheet. `rows` is the XML of its rows."""
    relations = RELATION.format("rId1", "worksheet", "worksheets/sheet1.xml")
    relations += RELATION.format("rId2", "sharedStrings", "sharedStrings.xml")
    workbook = '<sheets><sheet name="One" sheetId="1" r:id="rId1"/></sheets>'
    return make_zip(
        {
            "[Content_Types].xml": CONTENT_TYPES,
            "_rels/.rels": RELATIONS.format(RELATION.format("rId1", "officeDocument", "xl/workbook.xml")),
            "xl/_rels/workbook.xml.rels": RELATIONS.format(relations),
            "xl/workbook.xml": f'<workbook xmlns="{SHEET}" xmlns:r="r">{workbook}</workbook>',
            "xl/sharedStrings.xml": f'<sst xmlns="{SHEET}">{strings}</sst>',
            "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{SHEET}"><dimension ref="A1:XFD1048576"/>'
            f"<sheetData>{rows}</sheetData><mergeCells>{merged}</mergeCells></worksheet>",
        }
    )


def make_slide(shapes: str) -> bytes:
    """A PPTX of the least parts, with one slide. `shapes` is the XML of its shapes."""
    return make_zip(
        {
            "[Content_Types].xml": CONTENT_TYPES,
            "_rels/.rels": RELATIONS.format(RELATION.format("rId1", "officeDocument", "ppt/presentation.xml")),
            "ppt/_rels/presentation.xml.rels": RELATIONS.format(RELATION.format("rId1", "slide", "slides/slide1.xml")),
            "ppt/presentation.xml": '<presentation xmlns:r="r"><sldId r:id="rId1"/></presentation>',
            "ppt/slides/slide1.xml": f"<sld><cSld><spTree>{shapes}</spTree></cSld></sld>",
        }
    )


def make_form(annotations: Sequence[bytes]) -> bytes:
    """A PDF with one page, which has these annotations and no text."""
    objects = page_tree(0, 1)
    references = b" ".join(b"%d 0 R" % (len(objects) + number) for number in range(1, len(annotations) + 1))
    objects[-1] = objects[-1].removesuffix(b">>") + b"/Annots[%s]>>" % references
    return make_raw_pdf([*objects, *(b"<</Type/Annot/Rect[0 0 9 9]%s>>" % one for one in annotations)])


def with_stated_size(archive: bytes, size_bytes: int) -> bytes:
    """The archive, all of whose entries state another size than they have."""
    data, at = bytearray(archive), 0
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = data.find(signature)
        while at >= 0:
            struct.pack_into("<I", data, at + offset, size_bytes)
            at = data.find(signature, at + 4)
    return bytes(data)


def make_raw_pdf(objects: Sequence[bytes]) -> bytes:
    """A PDF of these objects, numbered from 1, the first of which is its catalogue."""
    parts, offsets, at = [b"%PDF-1.7\n"], [], 9
    for number, content in enumerate(objects, 1):
        offsets.append(at)
        parts.append(b"%d 0 obj\n%s\nendobj\n" % (number, content))
        at += len(parts[-1])
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    parts.append(b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(objects) + 1, table))
    parts.append(b"trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, at))
    return b"".join(parts)


def page_tree(depth: int, pages: int) -> list[bytes]:
    """Objects of a PDF whose page tree has so many levels above so many pages that are one and the same."""
    objects = [b"<</Type/Catalog/Pages 2 0 R>>"]
    objects += [b"<</Type/Pages/Count %d/Kids[%d 0 R]>>" % (pages, level + 3) for level in range(depth)]
    leaf = len(objects) + 2
    objects.append(b"<</Type/Pages/Count %d/Kids[%s]>>" % (pages, b"%d 0 R " % leaf * pages))
    objects.append(b"<</Type/Page/Parent %d 0 R/MediaBox[0 0 100 100]>>" % (leaf - 1))
    return objects
