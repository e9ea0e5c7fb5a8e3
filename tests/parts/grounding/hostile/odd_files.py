"""Honest files with features that few files have: what a parser would import or open late, one of them needs.

Also the same files, broken at random from a seed.
"""

import base64
import encodings
import io
import pkgutil
import random
import re
import zipfile
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta

import fpdf
import openpyxl
import PIL.Image
from fpdf.enums import EncryptionMethod
from openpyxl.chart import BarChart, Reference
from openpyxl.comments import Comment

from tests import made_files as made

TEXT = "Name,Town\nŽluťoučký kůň,Привет мир 漢字 テスト\n" * 20
WORDS = b'hello \xe4\xf6 \x1b$B$"\x1b(B ~{<:Ky~} &AGEA- world'
ENCODINGS = [
    *(module.name for module in pkgutil.iter_modules(encodings.__path__)),
    *(
        "unknown-8bit",
        "x-nope",
        "windows-31j",
        "iso-8859-8-i",
        "x-mac-cyrillic",
        "../../etc/passwd",
        "a.b.c",
        "x" * 300,
    ),
]
TRANSFERS = ("7bit", "8bit", "binary", "base64", "quoted-printable", "uuencode", "x-uue", "nope")
PART_TYPES = (
    *("message/rfc822", "message/delivery-status", "message/partial", "message/external-body", "message/global"),
    *("multipart/report", "multipart/signed", "multipart/appledouble", "multipart/", "text/calendar", "text/csv"),
    *("text/rfc822-headers", "image/png", "application/ms-tnef", "text/plain; charset*=utf-8''utf%2D8", "/", "text"),
)
CMAPS = {
    "UniGB-UCS2-H": "4E2D6587",
    "90ms-RKSJ-H": "93FA967B",
    "GBK-EUC-H": "D6D0CEC4",
    "KSCms-UHC-H": "C7D1B1DB",
    "ETen-B5-H": "A4A4A4E5",
    "UniJIS-UTF16-H": "65E5672C",
    "Identity-H": "00410042",
    "Nope-H": "0041",
}
LETTER = """From: =?{0}?b?{1}?= <a@example.org>
Subject: =?{0}?q?a=E4=1B$B?=
Content-Type: multipart/mixed; boundary=q

--q
Content-Type: text/plain; charset="{0}"

{2}
--q
Content-Type: text/html; charset={0}
Content-Disposition: attachment; filename*={0}''%E4%F6.html

<p>{2}
--q--
"""
PARTS = """From: a
Content-Type: multipart/mixed; boundary=z

--z

body
--z
Content-Type: {}
Content-Transfer-Encoding: {}
Content-Disposition: attachment; filename*0*=utf-8''a%C3; filename*1=b.txt

From: b
Reporting-MTA: dns; a

Final-Recipient: c

SGVsbG8=
=C3=A4
begin 666 x
#86)C
end
--z--
"""
TOKENS = (
    *(b"\0", b"\xff", b"<", b"</", b"&#xd800;", b"&#99999999999;", b"endobj", b"stream", b"<<", b">>", b"/Kids"),
    *(b"3 0 R", b"\n\n", b"--q", b"=?", b"=?utf-8?b?", b"charset=", b"PK\x03\x04", b"\xfe\xff", b"''", b"*0*="),
    *(b"\x1b$B", b"["),
)
VALUES = (
    *("-1", "0", "99999999999", "²", "", "A" * 50, "1e999", "nan", "_xD800_", "../../x", "rId1", "2958465.9999999"),
    *("/", "٣", "XFE1", "60", "0.999999999"),
)
VALUE = re.compile(r'(="|>)([^"<>]+)(?="|<)')


def letters() -> Iterator[tuple[str, bytes]]:
    """In every encoding of Python and some others, with parts of every kind."""
    word = base64.b64encode(WORDS).decode()
    for number, name in enumerate(ENCODINGS):
        letter = LETTER.format(name, word, WORDS.decode("latin-1")).encode("latin-1")
        yield f"charset {number}.eml", letter
        yield f"charset {number}.html", b"<html><meta charset='%b'><p>%b" % (name.encode(), WORDS)
    for number, (kind, transfer) in enumerate((kind, transfer) for kind in PART_TYPES for transfer in TRANSFERS):
        yield f"part {number}.eml", PARTS.format(kind, transfer).encode()


def texts() -> Iterator[tuple[str, bytes]]:
    for codec in ("utf-16", "utf-16-be", "utf-32", "utf-8-sig", "cp1250", "koi8-r", "shift_jis", "gb18030", "euc-kr"):
        yield f"{codec}.csv", TEXT.encode(codec, "replace")
        yield f"{codec}.json", f'{{"a": "{"Привет мир " * 400}"}}'.encode(codec, "replace")
    for codec in ("utf-16", "koi8-r", "iso-2022-jp", "utf-7", "cp037", "nope", "utf-32", "hz"):
        head = f'<?xml version="1.0" encoding="{codec}"?>'
        yield f"{codec}.docx", made.make_word(f'{head}<w:d xmlns:w="{made.WORD}"><w:p><w:t>hi</w:t></w:p></w:d>')


def workbook() -> bytes:
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append((1, 2.5, date(2020, 1, 1), datetime(1900, 1, 1), time(3, 4), timedelta(hours=40)))  # noqa: DTZ001
    sheet.append(("=SUM(A1:A2)", "x" * 5000, None, True, "#N/A", date(9999, 12, 31)))
    chart = BarChart()
    chart.add_data(Reference(sheet, min_col=1, min_row=1, max_row=2))
    sheet.add_chart(chart, "J1")
    sheet["A1"].comment = Comment("a comment", "me")
    book.create_chartsheet("chart")
    book.epoch = openpyxl.utils.datetime.CALENDAR_MAC_1904
    return made.saved(book)


def pdf_with_images(method: EncryptionMethod | None = None, password: str = "") -> bytes:
    pdf = fpdf.FPDF()
    pdf.add_page()
    pdf.set_font("Helvetica", size=12)
    pdf.cell(0, 10, "hello")
    packed = io.BytesIO()
    PIL.Image.new("RGB", (20, 20)).save(packed, "JPEG2000")
    pdf.image(packed)
    if method is not None:
        pdf.set_encryption(owner_password="o", user_password=password, encryption_method=method)
    return bytes(pdf.output())


def pdf_with_cmap(cmap: str, text: str) -> bytes:
    """With a form, a script, JBIG2 and JPX images, and a font that the system must have."""
    image = b"/Type/XObject/Subtype/Image/Width 8/Height 8/BitsPerComponent 1/ColorSpace/DeviceGray/Filter/"
    show = f"BT /F1 12 Tf 20 100 Td <{text}> Tj ET BT /F2 12 Tf 20 50 Td (latin) Tj ET /I1 Do /I2 Do"
    descriptor = b"/Flags 4/FontBBox[0 0 1000 1000]/ItalicAngle 0/Ascent 800/Descent -200/StemV 80/CapHeight 700"
    resources = b"<</Font<</F1 5 0 R/F2 9 0 R>>/XObject<</I1 10 0 R/I2 11 0 R>>>>"
    system = b"<</Registry(Adobe)/Ordering(GB1)/Supplement 2>>"
    return made.make_raw_pdf(
        [
            b"<</Type/Catalog/Pages 2 0 R/AcroForm<</Fields[8 0 R]/XFA(x)>>/OpenAction<</S/JavaScript/JS(x)>>>>",
            b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 300]/Contents 4 0 R/Annots[8 0 R]/Resources%b>>" % resources,
            _stream(b"", show.encode()),
            f"<</Type/Font/Subtype/Type0/BaseFont/STSong-Light/Encoding/{cmap}/DescendantFonts[6 0 R]>>".encode(),
            b"<</Type/Font/Subtype/CIDFontType0/BaseFont/STSong-Light/FontDescriptor 7 0 R/CIDSystemInfo%b>>" % system,
            b"<</Type/FontDescriptor/FontName/STSong-Light%b>>" % descriptor,
            b"<</Type/Annot/Subtype/Widget/FT/Tx/T(name)/V(value)/Rect[0 0 100 20]/P 3 0 R>>",
            b"<</Type/Font/Subtype/Type1/BaseFont/SomeOddFont>>",
            _stream(image + b"JBIG2Decode", b"\x97JB2\r\n"),
            _stream(image + b"JPXDecode", b"\0\0\0\x0cjP  "),
        ]
    )


def _stream(entries: bytes, data: bytes) -> bytes:
    return b"<<%b/Length %d>>stream\n%b\nendstream" % (entries, len(data), data)


def odd_files() -> Iterator[tuple[str, bytes]]:
    """Each with its name."""
    yield from letters()
    yield from texts()
    yield "a.xlsx", workbook()
    yield "images.pdf", pdf_with_images()
    for method in EncryptionMethod:
        yield f"{method.name}.pdf", pdf_with_images(method)
        yield f"locked {method.name}.pdf", pdf_with_images(method, "secret")
    for cmap, text in CMAPS.items():
        yield f"{cmap}.pdf", pdf_with_cmap(cmap, text)


def seeds() -> dict[str, bytes]:
    """A file of each format, small enough to be read in a few milliseconds."""
    return {
        "pdf": pdf_with_cmap("UniGB-UCS2-H", "4E2D6587"),
        "docx": made.make_word('<w:p><w:pPr><w:pStyle w:val="a"/></w:pPr><w:r><w:t>hello there</w:t></w:r></w:p>'),
        "xlsx": workbook(),
        "pptx": made.make_pptx(),
        "html": b"<html><title>T</title><p>Some &amp; more<table><tr><td>1<td>2</table><ul><li>a</ul><pre>x</pre>",
        "eml": made.make_eml({"a.csv": b"a,b\n1,2", "b.html": b"<p>b", "c.eml": made.make_eml({"d.txt": b"inner"})}),
        "txt": TEXT.encode("shift_jis", "replace"),
        "json": b'{"a": [1, 2, {"b": "\\u00e9"}]}' * 100,
    }


def break_file(chance: random.Random, data: bytes) -> bytes:
    """An archive is mostly broken in one of its parts, so that the reader gets there."""
    if not data.startswith(b"PK") or chance.random() < 0.2:
        return break_bytes(chance, data)
    source, target = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    parts = [name for name in source.namelist() if name.endswith((".xml", ".rels"))]
    broken = chance.choice(parts)
    with zipfile.ZipFile(target, "w") as archive:
        for name in source.namelist():
            part = source.read(name)
            if name == broken:
                part = break_values(chance, part) if chance.random() < 0.8 else break_bytes(chance, part)
            archive.writestr(name, part)
    return target.getvalue()


def break_values(chance: random.Random, data: bytes) -> bytes:
    """XML that can still be parsed, with other attributes and texts."""

    def other(found: re.Match[str]) -> str:
        return found[0] if chance.random() > 0.05 else found[1] + chance.choice(VALUES)

    return VALUE.sub(other, data.decode(errors="replace")).encode()


def break_bytes(chance: random.Random, data: bytes) -> bytes:
    broken = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 8, 30))):
        at = chance.randrange(len(broken) + 1)
        match chance.randrange(5):
            case 0 if at < len(broken):
                broken[at] = chance.randrange(256)
            case 1:
                broken[at:at] = chance.choice(TOKENS)
            case 2:
                del broken[at : at + chance.randrange(1, 20)]
            case 3:
                start = chance.randrange(len(broken) + 1)
                broken[at:at] = broken[start : start + chance.randrange(1, 60)]
            case _ if chance.random() < 0.1:
                del broken[at:]
    return bytes(broken)
