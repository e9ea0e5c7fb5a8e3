"""Text of files that real programs write."""

import pytest

from cadenza.parts.grounding.files.formats.read import read_document
from cadenza.parts.grounding.files.records import Unreadable
from tests import made_files as made


def read(data: bytes, name: str = "", media_type: str = "") -> dict[str, str]:
    return {section.label: section.text for section in read_document(name, media_type, data)}


def test_word_document() -> None:
    """A DOCX has its headings, lists, tables, comments and page headers."""
    found = read(made.make_docx(), "report.docx")
    assert found[""] == (
        "# Annual report\n\n# Prices\n\nRevenue grew by 12 % to 4,200 dollars.\n\n- first point\n- second point\n\n"
        "| Item | Price |\n| --- | --- |\n| Oat\\|meal | 3.20 |"
    )
    assert found["comments"] == "Ada: Check this figure."
    assert found["headers and footers"] == "Invoice 4711"


def test_spreadsheet() -> None:
    """An XLSX has a section for each sheet, with dates as dates and without empty columns."""
    found = read(made.make_xlsx(), "prices.xlsx")
    assert found["sheet Prices"].split("\n") == [
        "|  | A | B | C |",
        "| --- | --- | --- | --- |",
        "| 1 | Item | Price | Since |",
        "| 2 | Oats | 3.2 | 2026-03-01 |",
        "| 3 | Milk | 110% |",
        "| 4 | Sum | =B2+B3 |",
    ]
    assert found["sheet Far & away"] == ("|  | A | XFD |\n| --- | --- | --- |\n| 1 | corner |\n| 1048576 |  | TRUE |")


def test_slides() -> None:
    """A PPTX has a section for each slide, with its title, table and notes."""
    found = read(made.make_pptx(), "show.pptx")
    assert found["slide 1"] == "# Welcome\n\nAgenda\n\nQuestions"
    assert found["slide 2"] == (
        "# Figures\n\nSee the table\n\n| Year | Sales |\n| --- | --- |\n| 2026 | 77 |\n\nNotes: Mention the new shop."
    )


def test_pdf() -> None:
    """A PDF has a section for each page, with its number; the model is told of a page whose text is not there."""
    found = read(made.make_pdf(["Oats cost 3.20.", "", "Milk costs 1.10."]), "prices.pdf")
    assert found == {
        "page 1": "Oats cost 3.20.",
        "page 2": "[this page has no text; it may be a scan]",
        "page 3": "Milk costs 1.10.",
    }


def test_pdf_forms_and_notes() -> None:
    """What was filled into the form of a PDF, and the notes in it, follow the text of the page."""
    long = b"x" * 3_000
    data = made.make_form(
        [
            b"/Subtype/Widget/FT/Tx/T(n1)/TU(Full name)/V(Ada \\(Lovelace\\))",
            b"/Subtype/Widget/FT/Btn/T(agreed)/V/Yes",
            b"/Subtype/Widget/FT/Btn/T(declined)/V/Off",
            b"/Subtype/Widget/FT/Tx/T(empty)",
            b"/Subtype/Widget/FT/Tx/T(unseen)/V(secret)/F 2",
            b"/Subtype/Widget/FT/Tx/T(long)/V(%s)" % long,
            b"/Subtype/Text/Contents<FEFF00470072006F00DF>",
            b"/Subtype/Popup/Contents(secret)",
            b"/Subtype/Link/Contents(secret)",
        ]
    )
    assert read(data, "form.pdf")["page 1"].split("\n") == [
        "[field Full name: Ada (Lovelace)]",
        "[field agreed: Yes]",
        f"[field long: {long.decode()}]",
        "[note: Groß]",
    ]


def test_mail() -> None:
    """An EML has the headers that matter, its plain text, and the text of its attachments."""
    prices = made.make_xlsx()
    found = read(made.make_eml({"../../prices.xlsx": prices, "photo.png": b"\x89PNG\r\n\x1a\n"}), "a.eml")
    assert found[""] == (
        "From: Zoë <zoe@example.org>\nTo: sales@example.org\nDate: Mon, 02 Nov 2026 10:00:00 +0000\n"
        f"Subject: Grüße und Preise\nAttachments: prices.xlsx ({len(prices) / 1000:.0f} KB), "
        "photo.png (8 bytes, not read: it is a PNG image)\n\nPlease find the prices attached."
    )
    assert "Oats" in found["attachment prices.xlsx, sheet Prices"]
    assert len(found) == 3


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a.md", b"# Title\r\n\r\ntext", "# Title\n\ntext"),
        ("a.csv", b"a;b\n1;2\n", "a;b\n1;2"),
        ("a.csv", b'a;b\r\n1;"x\r\ny"\r\n\r\n2;z\r\n', 'a;b\n1;"x\ny"\n\n2;z'),
        ("a.tsv", b'a\tb\n1\t"2 ""3"""\n', 'a\tb\n1\t"2 ""3"""'),
        ("a.py", b"def f() -> None: ...\n", "def f() -> None: ..."),
        ("a.json", b'{"a": 1}', '{"a": 1}'),
        ("", "Grüße".encode(), "Grüße"),
        ("", b"\xef\xbb\xbfGr\xc3\xbc\xc3\x9fe", "Grüße"),
        ("", "Grüße".encode("utf-16"), "Grüße"),
        ("", b"\xfe\xff" + "Grüße".encode("utf-16-be"), "Grüße"),
        ("", "Grüße".encode("utf-32"), "Grüße"),
        ("", "“Grüße” €5".encode("cp1252"), "“Grüße” €5"),
        ("", "Grüße aus Köln, schöne Äpfel und Öl für die Küche, süß".encode() + b"\xff", None),
    ],
)
def test_text(name: str, data: bytes, text: str | None) -> None:
    """Text is read in its encoding: UTF-8, UTF-16 and UTF-32 by their marks, UTF-8 with an error, else by guessing."""
    found = read(data, name)[""]
    assert found == text if text is not None else "schöne Äpfel" in found


def test_json_on_one_line() -> None:
    """Long JSON on one line gets lines, so that it can be cut into passages."""
    found = read(b'{"a":[' + b",".join(b'"word"' for _ in range(1000)) + b"]}", "a.json")[""]
    assert found.count("\n") > 1000


def test_control_characters() -> None:
    """Control characters, NUL and invisible tags are removed from the text."""
    assert read(b"a\x1b[31mb" + "c\U000e0041d\u200b".encode() + b"\n" * 2)[""] == "a[31mbcd\u200b"
    document = made.make_docx()
    assert read_document("a\0b", "x/\0", document) == read_document("", "", document)


@pytest.mark.parametrize("macros", ["word/vbaProject.bin", "xl/vbaProject.bin"])
def test_macros_are_not_read(macros: str) -> None:
    """A document with macros is read without them."""
    body = "<w:p><w:r><w:t>text</w:t></w:r></w:p>"
    assert read(made.make_word(body, {macros: b"\xd0\xcf\x11\xe0 Sub AutoOpen()"}), "a.docm") == {"": "text"}


def test_tracked_changes_and_fields() -> None:
    """Deleted text, field codes and the fallback copy of a text box are not part of the text."""
    body = (
        "<w:p><w:r><w:t>kept</w:t></w:r><w:del><w:r><w:delText>gone</w:delText></w:r></w:del>"
        "<w:moveFrom><w:r><w:t>moved</w:t></w:r></w:moveFrom><w:r><w:instrText>PAGE</w:instrText></w:r>"
        "<mc:AlternateContent xmlns:mc='m'><mc:Choice><w:p><w:r><w:t>box</w:t></w:r></w:p></mc:Choice>"
        "<mc:Fallback><w:p><w:r><w:t>box</w:t></w:r></w:p></mc:Fallback></mc:AlternateContent></w:p>"
    )
    assert read(made.make_word(body)) == {"": "box\n\nkept"}


@pytest.mark.parametrize("data", [b"", b" \n\t", made.make_xlsx()[:0]])
def test_empty_files(data: bytes) -> None:
    """An empty file is unreadable."""
    with pytest.raises(Unreadable, match=r"it is empty|it has no text"):
        read_document("a.txt", "text/plain", data)
