"""Small files with a needle in their text: one of each format that the service reads, and some that it refuses."""

import io
import zipfile
from collections.abc import Callable, Mapping
from types import MappingProxyType

RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
TYPES = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
SLIDE = "http://schemas.openxmlformats.org/presentationml/2006/main"
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
OPEN_DOCUMENT = "urn:oasis:names:tc:opendocument:xmlns"

MakeFile = Callable[[str], bytes]


def _archive(parts: Mapping[str, str]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return data.getvalue()


def _office(main: str, text: str, more: Mapping[str, str] | None = None) -> bytes:
    """An Office package with one main part."""
    relation = f'<Relationship Id="r1" Type="{TYPES}/officeDocument" Target="{main}"/>'
    return _archive(
        {
            "[Content_Types].xml": "<Types/>",
            "_rels/.rels": f'<Relationships xmlns="{RELATIONS}">{relation}</Relationships>',
            main: text,
            **(more or {}),
        }
    )


def _word(needle: str) -> bytes:
    body = f"<w:body><w:p><w:r><w:t>{needle}</w:t></w:r></w:p></w:body>"
    return _office("word/document.xml", f'<w:document xmlns:w="{WORD}">{body}</w:document>')


def _sheet(needle: str) -> bytes:
    cell = f'<c r="A1" t="inlineStr"><is><t>{needle}</t></is></c>'
    relation = f'<Relationship Id="r1" Type="{TYPES}/worksheet" Target="worksheets/sheet1.xml"/>'
    return _office(
        "xl/workbook.xml",
        f'<workbook xmlns="{SHEET}" xmlns:r="{TYPES}"><sheets><sheet name="One" sheetId="1" r:id="r1"/></sheets>'
        "</workbook>",
        {
            "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{RELATIONS}">{relation}</Relationships>',
            "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{SHEET}"><sheetData><row r="1">{cell}</row></sheetData>'
            "</worksheet>",
        },
    )


def _slides(needle: str) -> bytes:
    text = f"<p:txBody><a:p><a:r><a:t>{needle}</a:t></a:r></a:p></p:txBody>"
    relation = f'<Relationship Id="r1" Type="{TYPES}/slide" Target="slides/slide1.xml"/>'
    return _office(
        "ppt/presentation.xml",
        f'<p:presentation xmlns:p="{SLIDE}" xmlns:r="{TYPES}"><p:sldIdLst><p:sldId id="256" r:id="r1"/></p:sldIdLst>'
        "</p:presentation>",
        {
            "ppt/_rels/presentation.xml.rels": f'<Relationships xmlns="{RELATIONS}">{relation}</Relationships>',
            "ppt/slides/slide1.xml": f'<p:sld xmlns:p="{SLIDE}" xmlns:a="{DRAWING}"><p:cSld><p:spTree><p:sp>{text}'
            "</p:sp></p:spTree></p:cSld></p:sld>",
        },
    )


def _open_document(needle: str) -> bytes:
    names = f'xmlns:office="{OPEN_DOCUMENT}:office:1.0" xmlns:text="{OPEN_DOCUMENT}:text:1.0"'
    body = f"<office:body><office:text><text:p>{needle}</text:p></office:text></office:body>"
    return _archive(
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "content.xml": f"<office:document-content {names}>{body}</office:document-content>",
        }
    )


def _epub(needle: str) -> bytes:
    return _archive(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": '<container><rootfiles><rootfile full-path="book.opf"/></rootfiles></container>',
            "book.opf": '<package><manifest><item id="one" href="one.xhtml"/></manifest>'
            '<spine><itemref idref="one"/></spine></package>',
            "one.xhtml": f"<html><body><p>{needle}</p></body></html>",
        }
    )


def _pdf(needle: str) -> bytes:
    """One page with one line of text, which is in no compressed stream."""
    content = f"BT /F1 12 Tf 72 720 Td ({needle}) Tj ET".encode("latin-1", "replace")
    objects = (
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%b\nendstream" % (len(content), content),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    )
    data, places = b"%PDF-1.4\n", list[int]()
    for number, text in enumerate(objects, start=1):
        places.append(len(data))
        data += b"%d 0 obj\n%b\nendobj\n" % (number, text)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    count = len(objects) + 1
    end = b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (count, len(data))
    return data + b"xref\n0 %d\n0000000000 65535 f \n%b%b" % (count, table, end)


def _mail(needle: str) -> bytes:
    return f"From: a@example.org\r\nTo: b@example.org\r\nSubject: {needle}\r\n\r\n{needle}\r\n".encode()


READ: Mapping[str, MakeFile] = MappingProxyType(
    {
        "txt": str.encode,
        "md": lambda needle: f"# {needle}\n\n{needle}\n".encode(),
        "csv": lambda needle: f"name,value\n{needle},1\n".encode(),
        "json": lambda needle: f'{{"text": "{needle}"}}'.encode(),
        "utf-16.txt": lambda needle: needle.encode("utf-16"),
        "html": lambda needle: f"<html><body><p>{needle}</p></body></html>".encode(),
        "eml": _mail,
        "pdf": _pdf,
        "docx": _word,
        "xlsx": _sheet,
        "pptx": _slides,
        "odt": _open_document,
        "epub": _epub,
    }
)
REFUSED: Mapping[str, MakeFile] = MappingProxyType(
    {
        "damaged.pdf": lambda needle: b"%PDF-1.4\n" + needle.encode(),
        "damaged.docx": lambda needle: _office("word/document.xml", f"<w:document>{needle}"),
        "zip": lambda needle: _archive({"a.txt": needle}),
        "png": lambda needle: b"\x89PNG\r\n\x1a\n" + needle.encode(),
        "rtf": lambda needle: b"{\\rtf1 " + needle.encode() + b"}",
    }
)
