"""Bad input: files that attack a parser, or are not what they say they are."""

import time

import pytest

from cadenza.parts.grounding.files.formats.cells import (
    FIRST_DAY_1900,
    FIRST_DAY_1904,
    NumberKind,
    parse_format,
    show_number,
)
from cadenza.parts.grounding.files.formats.read import read_document, read_page
from cadenza.parts.grounding.files.formats.source import FormatLimits
from cadenza.parts.grounding.files.records import Unreadable
from tests import made_files as made

MIB = 1024 * 1024
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
NOT_TEXT = "it is not text, and not a file of a kind that can be read"
NO_CHARSET = bytes(128 + (41 + 73 * number) % 128 for number in range(128))
LIMITS = FormatLimits(chars_max=20_000, unpacked_bytes_max=4 * MIB, entries_max=50, pages_max=30, elements_max=20_000)
CPU_S = 10.0
DATE = parse_format("yyyy-mm-dd")
BODY = "<w:p><w:r><w:t>{}</w:t></w:r></w:p>"
ENTITY = (
    '<?xml version="1.0"?><!DOCTYPE d [{}]><w:document xmlns:w="w"><w:body>'
    "<w:p><w:r><w:t>&x;</w:t></w:r></w:p></w:body></w:document>"
)
LAUGHS = '<!ENTITY a "ha ha ha">' + "".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(9))


def reason(data: bytes, name: str = "", limits: FormatLimits = LIMITS) -> str:
    """Why the file cannot be read; it is told within the CPU time of a task."""
    began_s = time.process_time()
    with pytest.raises(Unreadable) as refused:
        read_document(name, "", data, limits)
    assert time.process_time() - began_s < CPU_S
    return refused.value.reason


def texts_or_reason(data: bytes, name: str = "", limits: FormatLimits = LIMITS) -> tuple[list[str], str]:
    try:
        return [section.text for section in read_document(name, "", data, limits)], ""
    except Unreadable as refused:
        return [], refused.reason


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (made.make_word(" " * 8 * MIB), "larger than 4 MiB"),
        (made.make_word(BODY.format("x" * 30_000)), "more than 20,000 characters"),
        (made.make_word("", {f"word/{number}.bin": b"" for number in range(100)}), "more than 50 entries"),
        (made.make_zip({"a.zip": made.make_zip({"b.zip": bytes(MIB)})}), "it is a ZIP archive"),
        (made.with_stated_size(made.make_word(BODY.format("x" * 1000)), 10), "damaged"),
    ],
    ids=["ratio", "text", "entries", "nested", "states too little"],
)
def test_zip_bombs(data: bytes, told: str) -> None:
    """An archive that grows, has too many entries or lies about its sizes is refused."""
    assert told in reason(data, "a.docx")


def test_an_archive_that_states_too_much() -> None:
    """A part that is smaller than the archive says costs what it has."""
    data = made.with_stated_size(made.make_word(BODY.format("text")), 2**31)
    assert [section.text for section in read_document("a.docx", "", data, LIMITS)] == ["text"]


@pytest.mark.slow(reason="files as large as they may be")
def test_a_million_objects() -> None:
    """A PDF with a million objects is read within the limits of a task."""
    tree = made.page_tree(0, 1)
    assert reason(made.make_raw_pdf([*tree, *[b"[]"] * 1_000_000])) == "it has no text; it may be a scan"


@pytest.mark.parametrize(
    ("objects", "told"),
    [
        (made.page_tree(20_000, 1), "it has no text; it may be a scan"),
        (made.page_tree(1, 100), "it has more than 30 pages"),
        ([b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Count 9/Kids[2 0 R 2 0 R]/Parent 2 0 R>>"], "it has no"),
        ([b"<</Type/Catalog/Pages 2 0 R/X " + b"[" * 100_000], "PDF"),
    ],
    ids=["deep", "many pages", "circular", "nested arrays"],
)
def test_hostile_pdfs(objects: list[bytes], told: str) -> None:
    """A PDF with a deep or circular page tree, or with too many pages, is told apart from one with text."""
    assert told in reason(made.make_raw_pdf(objects))


def test_many_annotations() -> None:
    """Annotations are bounded by the characters of text, though they may have none."""
    objects = made.page_tree(0, 1)
    annotations = b"/Annots[%s]>>" % (b"<</Subtype/Link>>" * 2_000)
    objects[-1] = objects[-1].removesuffix(b">>") + annotations
    assert "more than 20,000 characters" in reason(made.make_raw_pdf(objects))


def test_encrypted_files() -> None:
    """An encrypted PDF or Office file says that it is encrypted, and what to do."""
    told = "it is encrypted; save it without a password"
    assert reason(made.make_pdf(["secret"], password="open sesame")) == told
    assert reason(OLE + bytes(600) + "EncryptedPackage".encode("utf-16-le"), "a.docx") == told


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (PNG, "it is a PNG image; save its text as PDF, DOCX or plain text"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "it is a WebP image; save its text as PDF, DOCX or plain text"),
        (b"\0\0\0\x1cftypheic\0\0\0\0", "it is a HEIC image; save its text as PDF, DOCX or plain text"),
        (b"RIFF\0\0\0\0WAVEfmt ", "it is an audio file; save what is said as text"),
        (b"ID3\x04\0\0", "it is an audio file; save what is said as text"),
        (b"\0\0\0\x1cftypisom\0\0\0\0", "it is a video file; save what is said as text"),
        (b"RIFF\0\0\0\0AVI LIST", "it is a video file; save what is said as text"),
        (b"\x1f\x8b\x08\0", "it is a gzip archive; unpack it and use the files in it"),
        (made.make_zip({"a.txt": "x"}), "it is a ZIP archive; unpack it and use the files in it"),
        (
            made.make_zip({"mimetype": "application/epub+zip", "content.xml": "x"}),
            "it is an OpenDocument file or an e-book; save it as DOCX, XLSX, PPTX or PDF",
        ),
        (b"SQLite format 3\0", "it is a database; export what you need as CSV"),
        (b"\x7fELF" + bytes(50), "it is a program; only documents and text are read"),
        (OLE + bytes(600), "it is in an old format of Office or Outlook; save it as DOCX, XLSX, PPTX, EML or PDF"),
        (b"{\\rtf1 text}", "it is RTF, which cannot be read; save it as DOCX or PDF"),
        *((data, NOT_TEXT) for data in (bytes(range(256)) * 4, b"abc\0def", b"\xff\x00\x81\x8d" * 20)),
        (NO_CHARSET, "its text is in an unknown encoding; save it as UTF-8"),
    ],
)
def test_files_that_are_no_documents_say_what_to_do(data: bytes, told: str) -> None:
    """Whatever their names say; the advice fits an attachment as well as a file of an indexed folder."""
    assert reason(data, "a.pdf") == reason(data, "a.txt") == told


@pytest.mark.parametrize("make", [made.make_docx, made.make_xlsx, made.make_pptx, lambda: made.make_pdf(["text"])])
@pytest.mark.parametrize("kept", [0.01, 0.5, 0.99])
def test_truncated_files(make: made.Make, kept: float) -> None:
    """A truncated file is damaged, whatever is missing; a PDF may be repaired."""
    data = make()
    texts, why = texts_or_reason(data[: max(5, int(len(data) * kept))])
    if data.startswith(b"%PDF"):
        assert texts == ["text"] or "damaged" in why or "no pages" in why or "no text" in why
    else:
        assert "damaged" in why


def test_wrong_extensions_that_can_be_read() -> None:
    """A file is read as what it is, whatever its name and media type say."""
    pdf = made.make_pdf(["text"])
    for name, media_type in (
        ("a.docx", ""),
        ("", "image/png"),
        ("../../etc/a.exe", "text/plain"),
        ("a.html", "text/html"),
    ):
        assert read_document(name, media_type, pdf)[0].label == "page 1"
    assert read_document("a.pdf", "application/pdf", b"only text")[0].text == "only text"
    assert read_document("a.pdf", "", b"\x00\x01junk" + pdf)[0].label == "page 1"
    assert read_document("a.py", "", b'if data.startswith(b"%PDF-"): ...')[0].label == ""


@pytest.mark.parametrize("entities", ['<!ENTITY x SYSTEM "file:///etc/passwd">', f"{LAUGHS}<!ENTITY x '&j;'>"])
def test_entities(entities: str) -> None:
    """Entities in Office files are refused, so that none is fetched or multiplied."""
    assert "document type declaration" in reason(made.make_word(ENTITY.format(entities)))


def test_entities_in_html_and_mail() -> None:
    """HTML knows no entities but its own."""
    page = f"<!DOCTYPE html [{LAUGHS}]><html><p>&j; &lt;ok&gt;</p></html>".encode()
    assert read_document("a.html", "", page, LIMITS)[0].text.endswith("&j; <ok>")
    assert read_document("a.eml", "", made.make_eml({}, html=page.decode()), LIMITS)[0].text.endswith("&j; <ok>")


@pytest.mark.parametrize("encoding", ["UTF-9", "zlib", "utf-16-le", "shift_jis"])
def test_unknown_encodings_of_xml(encoding: str) -> None:
    """XML in an encoding that does not exist, or is not for XML, is damaged."""
    body = f'<?xml version="1.0" encoding="{encoding}"?><w:document xmlns:w="w"><w:body/></w:document>'
    assert "its XML cannot be parsed" in reason(made.make_word(body))


def test_nothing_outside_is_followed() -> None:
    """A relationship to the outside, or out of the archive, leads nowhere."""
    relations = made.RELATIONS.format(
        '<Relationship Id="r1" Type="x/header" Target="https://example.org/h.xml" TargetMode="External"/>'
        '<Relationship Id="r2" Type="x/header" Target="../../../etc/passwd"/>'
    )
    data = made.make_word(BODY.format("text"), {"word/_rels/document.xml.rels": relations})
    assert [section.text for section in read_document("", "", data)] == ["text"]


def test_a_sheet_that_claims_a_billion_rows() -> None:
    """What a sheet says about its size costs nothing; its cells count."""
    rows = "<row r='1048576'><c r='XFD1048576'><v>7</v></c></row>"
    assert read_document("", "", made.make_sheet(rows))[0].text.endswith("| 1048576 | 7 |")


def test_cell_bombs() -> None:
    """A shared string that many cells show, and cells without number, are bounded by the characters of text."""
    shown = "<row><c t='s'><v>0</v></c></row>" * 1000
    assert "more than 20,000 characters" in reason(made.make_sheet(shown, f"<si><t>{'a' * 1000}</t></si>"))
    assert "more than 20,000 characters" in reason(made.make_sheet("<row><c><v>1</v></c></row>" * 10_000))
    assert "more than 20,000 characters" in reason(made.make_sheet("<row/>", "<si><t>a</t></si>" * 10_000))
    far = "".join(
        f"<row><c r='A{row}'><v>1</v></c><c r='{chr(65 + row % 26)}Z{row}'><v>1</v></c></row>" for row in range(3000)
    )
    assert "more than 20,000 characters" in reason(made.make_sheet(far))


def test_merged_cells_are_bounded() -> None:
    """Ranges of merged cells that overlap are bounded by the characters of text, and cover only rows with a value."""
    rows = "".join(f"<row r='{row}'><c r='A{row}'><v>1</v></c></row>" for row in range(1, 500))
    merged = "<mergeCell ref='A1:XFD1048576'/>"
    assert "more than 20,000 characters" in reason(made.make_sheet(rows, merged=merged * 1_000_000))
    assert read_document("", "", made.make_sheet(rows, merged=merged), LIMITS)[0].text.endswith("| 499 | 1 |")


def test_hostile_numbers() -> None:
    """A number of a million digits, one that is none, and formats that never end, are shown as text in linear time."""
    began_s = time.process_time()
    for value in ("9" * MIB, "1e999999", "nan", "-", "1_0", "9" * MIB + ".5"):
        rows = f"<row><c><v>{value}</v></c></row>"
        assert read_document("", "", made.make_sheet(rows))[0].text.startswith("|  | A |")
    for code in ('"' * 100_000, "[" * 100_000, "0;" * 50_000, "_*" * 50_000, "0 " * 50_000 + "x"):
        assert parse_format(code).kind in NumberKind
    assert time.process_time() - began_s < CPU_S


@pytest.mark.slow(reason="files as large as they may be")
@pytest.mark.parametrize("tag", ["div", "table><tr><td", "b"])
def test_deep_html(tag: str) -> None:
    """HTML that is nested 30,000 deep is read, in time that grows with its length only."""
    page = (f"<html>{f'<{tag}>' * 30_000}deep inside").encode()
    limits = FormatLimits(elements_max=120_000)
    began_s = time.process_time()
    assert "deep inside" in read_document("a.html", "", page, limits)[0].text
    assert "deep inside" in read_page("https://example.org/", "text/html", page, limits).sections[0].text
    assert time.process_time() - began_s < 2 * CPU_S


@pytest.mark.slow(reason="files as large as they may be")
@pytest.mark.parametrize(
    "piece",
    ["<", "<a ", "<a '\"x ", "<!--", "<!", "<script>", "</p", "<p x='", '<p x="', "&amp", "&#x", "]]>", "<?", "</b>",
     "</div>", "<span hidden>", "<b hidden></b>", "<a href=https://example.org>x", "<p style='display      '>"],
)  # fmt: skip
def test_html_takes_linear_time(piece: str) -> None:
    """Unclosed tags, quotes, comments and scripts, and stray end tags, do not make the reader go back over and over."""
    page = (f"<html><p>text</p>{'<i><section>' * 190}{piece * (MIB // len(piece))}>").encode()
    began_s = time.process_time()
    _, why = texts_or_reason(page, "a.html", FormatLimits())
    assert not why or "too many" in why
    assert time.process_time() - began_s < CPU_S


def test_too_many_elements() -> None:
    """A page with more elements than are read is refused."""
    assert reason(b"<html>" + b"<p>x" * 30_000) == "it has too many elements"


@pytest.mark.parametrize(
    "body",
    [
        b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(1500)),
        b"Content-Type: multipart/mixed; boundary=b\n\n" + b"--b\n\nx\n" * 3000,
        b"Content-Type: multipart/mixed\n\nno boundary",
        b"X-Many: y\n" * 1_000_000,
        b"Content-Type: text/plain; " + b"a*0=x; " * 1_000_000 + b"\n\nbody",
        b"Content-Type: text/plain; charset=rot13\nContent-Transfer-Encoding: base64\n\n%%%",
        b"Subject: =?utf-8?b?////?= =?nonsense?q?x?= =?utf\xff8?q?x?=\n\nbody",
        b"Content-Disposition: attachment; filename*=nonsense''%ff\n\nbody",
    ],
    ids=["deep", "many parts", "no boundary", "many headers", "many parameters", "charset", "header", "name"],
)
def test_hostile_mail(body: bytes) -> None:
    """A hostile e-mail is read or refused, but never an error of the parser."""
    texts, why = texts_or_reason(b"From: a@example.org\n" + body, "a.eml")
    assert texts or "e-mail" in why


def test_mail_in_mail_in_mail() -> None:
    """E-mails inside e-mails are read to a limited depth, and a limited number of attachments of all of them."""
    inner = made.make_eml({"deepest.txt": b"treasure"})
    for _ in range(6):
        inner = made.make_eml({"inner.eml": inner})
    labels = [section.label for section in read_document("a.eml", "", inner)]
    assert max(label.count("inner.eml") for label in labels) == FormatLimits().nesting_max
    many = made.make_eml({f"{number}.txt": b"text" for number in range(40)})
    assert len(read_document("a.eml", "", many)) == 1 + FormatLimits().attachments_max


def test_the_pages_of_all_attachments_are_bounded_together() -> None:
    """An attachment that has more pages than are left is left out, and a shorter one after it is still read."""
    long, short = made.make_pdf(["text"] * 20), made.make_pdf(["text"])
    mail = made.make_eml({"a.pdf": long, "b.pdf": long, "c.pdf": short})
    labels = [section.label for section in read_document("a.eml", "", mail, LIMITS)]
    assert sum(label.startswith("attachment a.pdf") for label in labels) == 20
    assert labels[-1] == "attachment c.pdf, page 1"
    assert len(labels) == 22


def test_names_cannot_pose_as_lines() -> None:
    """The name of a sheet or an attachment stays on one line of a label, without its path."""
    mail = made.make_eml({"x/..\\evil name.txt": b"text"})
    assert read_document("a.eml", "", mail)[1].label == "attachment evil name.txt"


@pytest.mark.parametrize("days", ["2958465", "2957004", "2958465.999999995"])
def test_a_date_beyond_the_year_9999(days: str) -> None:
    """If days are counted from 1904, the last ones have no date: the number is shown."""
    assert show_number(days, DATE, FIRST_DAY_1904).startswith(days[:6])
    assert show_number("2958465", DATE, FIRST_DAY_1900) == "9999-12-31"


ITEM = "<w:p><w:pPr><w:numPr/></w:pPr><w:r><w:t>long enough to be slow</w:t></w:r></w:p>"
GROUP = "<grpSp><grpSpPr><xfrm><off x='1' y='1'/></xfrm></grpSpPr><sp><p><r><t>a</t></r></p></sp>"
LONG_OR_DEEP: dict[str, tuple[made.Make, str]] = {
    "a list in Word": (lambda: made.make_word(ITEM * 30_000), "- long enough"),
    "a list in HTML": (lambda: b"<html>" + b"<li>long enough to be slow" * 30_000, "- long enough"),
    "groups of shapes": (lambda: made.make_slide(GROUP * 30_000 + "</grpSp>" * 30_000), "a"),
    "paragraphs": (lambda: made.make_word("<w:p>" * 100_000 + "</w:p>" * 100_000), ""),
    "tables": (lambda: made.make_word("<w:tbl><w:tr><w:tc>" * 30_000 + "</w:tc></w:tr></w:tbl>" * 30_000), ""),
    "JSON": (lambda: b"[" * 100_000, "[" * 100_000),
}


@pytest.mark.parametrize("case", LONG_OR_DEEP)
def test_what_is_long_or_deep_takes_linear_time(case: str) -> None:
    """Lists of 30,000 items, and what is inside each other as often, are read without recursion."""
    make, begin = LONG_OR_DEEP[case]
    began_s = time.process_time()
    texts, why = texts_or_reason(make(), "", FormatLimits())
    assert texts[0].startswith(begin) if begin else why == "it has no text"
    assert time.process_time() - began_s < CPU_S
