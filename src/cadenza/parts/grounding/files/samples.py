"""Small files with a given word in their text: one of each format that is read, and some that are refused.

A template is the text of a file or, as a dictionary, the parts of a ZIP archive. The retention audit sends all of them.
"""

import io
import zipfile

OFFICE = "http://schemas.openxmlformats.org"
TYPES = f"{OFFICE}/officeDocument/2006/relationships"


def _part(name: str, kind: str, body: str) -> str:
    """An XML part of an Office package."""
    spaces = f'xmlns="{OFFICE}/{kind}/2006/main" xmlns:a="{OFFICE}/drawingml/2006/main" xmlns:r="{TYPES}"'
    return f"<{name} {spaces}>{body}</{name}>"


def _relation(kind: str, target: str) -> str:
    one = f'<Relationship Id="r1" Type="{TYPES}/{kind}" Target="{target}"/>'
    return f'<Relationships xmlns="{OFFICE}/package/2006/relationships">{one}</Relationships>'


CELL = '<sheetData><row r="1"><c r="A1" t="inlineStr"><is><t>{word}</t></is></c></row></sheetData>'
SLIDE = "<cSld><spTree><sp><txBody><a:p><a:r><a:t>{word}</a:t></a:r></a:p></txBody></sp></spTree></cSld>"
SHEETS = '<sheets><sheet name="One" sheetId="1" r:id="r1"/></sheets>'
READABLE: dict[str, str | dict[str, str]] = {
    "txt": "{word}",
    "md": "# {word}\n\n{word}\n",
    "csv": "name,value\n{word},1\n",
    "json": '{"text": "{word}"}',
    "utf-16.txt": "{word}",
    "html": "<html><body><p>{word}</p></body></html>",
    "eml": "From: a@example.org\r\nTo: b@example.org\r\nSubject: {word}\r\n\r\n{word}\r\n",
    "pdf": "%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
    "3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>endobj\n"
    "4 0 obj<</Length 48>>stream\nBT /F1 12 Tf 72 720 Td ({word}) Tj ET\nendstream endobj\n"  # 34 and the word
    "5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n",
    "docx": {
        "_rels/.rels": _relation("officeDocument", "word/document.xml"),
        "word/document.xml": _part("document", "wordprocessingml", "<body><p><r><t>{word}</t></r></p></body>"),
    },
    "xlsx": {
        "_rels/.rels": _relation("officeDocument", "xl/workbook.xml"),
        "xl/workbook.xml": _part("workbook", "spreadsheetml", SHEETS),
        "xl/_rels/workbook.xml.rels": _relation("worksheet", "sheet.xml"),
        "xl/sheet.xml": _part("worksheet", "spreadsheetml", CELL),
    },
    "pptx": {
        "_rels/.rels": _relation("officeDocument", "ppt/presentation.xml"),
        "ppt/presentation.xml": _part(
            "presentation", "presentationml", '<sldIdLst><sldId id="256" r:id="r1"/></sldIdLst>'
        ),
        "ppt/_rels/presentation.xml.rels": _relation("slide", "slide.xml"),
        "ppt/slide.xml": _part("sld", "presentationml", SLIDE),
    },
}
UNREADABLE: dict[str, str | dict[str, str]] = {
    "damaged.pdf": "%PDF-1.4\n{word}",
    "damaged.docx": {"_rels/.rels": _relation("officeDocument", "a.xml"), "a.xml": "<w:document>{word}"},
    "zip": {"a.txt": "{word}"},
    "png": "\x89PNG\r\n\x1a\n{word}",
    "rtf": "{\\rtf1 {word}}",
}


def make_sample(name: str, word: str) -> bytes:
    """One of READABLE or UNREADABLE, with an ASCII word."""
    template = {**READABLE, **UNREADABLE}[name]
    if isinstance(template, str):
        return template.replace("{word}", word).encode("utf-16" if name.startswith("utf-16") else "latin-1")
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for part, text in template.items():
            archive.writestr(part, text.replace("{word}", word))
    return data.getvalue()
