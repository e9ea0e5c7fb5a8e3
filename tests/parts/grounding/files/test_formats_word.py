"""Word documents: the numbers that Word shows, and what it hides."""

import docx
import pytest

from cadenza.parts.grounding.files.formats.office_text import show_count
from cadenza.parts.grounding.files.formats.read import read_document
from tests import made_files as made

ITEM = "<w:p><w:pPr><w:numPr><w:ilvl w:val='{}'/><w:numId w:val='{}'/></w:numPr></w:pPr><w:r><w:t>{}</w:t></w:r></w:p>"
LEVEL = "<w:lvl w:ilvl='{}'><w:start w:val='{}'/><w:numFmt w:val='{}'/><w:lvlText w:val='{}'/></w:lvl>"
LEVELS = ((0, 1, "decimal", "%1."), (1, 1, "decimal", "%1.%2"), (2, 3, "lowerLetter", "(%3)"), (3, 1, "bullet", "o"))
NUMBERING = (
    f"<w:numbering xmlns:w='{made.WORD}'><w:abstractNum w:abstractNumId='7'>"
    + "".join(LEVEL.format(*level) for level in LEVELS)
    + "</w:abstractNum><w:num w:numId='1'><w:abstractNumId w:val='7'/></w:num>"
    "<w:num w:numId='2'><w:abstractNumId w:val='7'/></w:num><w:num w:numId='3'><w:abstractNumId w:val='7'/>"
    "<w:lvlOverride w:ilvl='0'><w:startOverride w:val='5'/></w:lvlOverride></w:num></w:numbering>"
)


def read(body: str) -> str:
    more = {
        "word/numbering.xml": NUMBERING,
        "word/_rels/document.xml.rels": made.RELATIONS.format(made.RELATION.format("n", "numbering", "numbering.xml")),
    }
    return read_document("a.docx", "", made.make_word(body, more))[0].text


def test_numbers_of_lists() -> None:
    """Items have the numbers that Word shows: on all levels, over lists of one kind, and anew where a list says so."""
    items = [(0, 1), (1, 1), (1, 1), (2, 1), (2, 1), (3, 1), (0, 2), (1, 2), (0, 3), (0, 9), (8, 1)]
    shown = read("".join(ITEM.format(level, id_, f"text {level}") for level, id_ in items))
    assert shown.split("\n") == [
        "1. text 0",
        "  1.1 text 1",
        "  1.2 text 1",
        "    (c) text 2",
        "    (d) text 2",
        "      - text 3",
        "2. text 0",
        "  2.1 text 1",
        "5. text 0",
        "- text 0",
        "                - text 8",
    ]


def test_numbered_headings_and_steps() -> None:
    """A heading has its number, and the styles of Word for lists number their paragraphs."""
    document = docx.Document()
    for text in ("first", "second"):
        document.add_paragraph(text, style="List Number")
    document.add_paragraph("point", style="List Bullet")
    assert read_document("a.docx", "", made.saved(document))[0].text == "1. first\n2. second\n- point"
    heading = "<w:outlineLvl w:val='1'/></w:pPr>"
    assert read(ITEM.format(0, 1, "Scope").replace("</w:pPr>", heading)) == "## 1. Scope"


@pytest.mark.parametrize(
    ("count", "form", "shown"),
    [
        (4, "decimal", "4"),
        (4, "decimalZero", "04"),
        (28, "lowerLetter", "bb"),
        (3, "upperLetter", "C"),
        (1994, "upperRoman", "MCMXCIV"),
        (9, "lowerRoman", "ix"),
        (999_999, "lowerRoman", "999999"),
        (999_999, "lowerLetter", "999999"),
        (3, "ideographTraditional", "3"),
    ],
)
def test_forms_of_numbers(count: int, form: str, shown: str) -> None:
    """Numbers are digits, letters or Roman; those beyond sense, and of other forms, are digits."""
    assert show_count(count, form) == shown


def test_hidden_text() -> None:
    """Hidden text is left out; the mark of a paragraph that is hidden hides nothing else."""
    run = "<w:r><w:rPr>{}</w:rPr><w:t>{}</w:t></w:r>"
    mark = "<w:pPr><w:rPr><w:vanish/></w:rPr></w:pPr>"
    runs = [("", "a"), ("<w:vanish/>", "b"), ("", "c"), ("<w:vanish w:val='0'/>", "d"), ("<w:webHidden/>", "e")]
    assert read(f"<w:p>{mark}{''.join(run.format(*one) for one in runs)}</w:p>") == "acde"


def test_inserted_text_notes_and_text_boxes() -> None:
    """Inserted text, text boxes, content controls and references to notes are part of the text."""
    note = "<w:r><w:footnoteReference w:id='2'/></w:r><w:r><w:endnoteReference w:id='3'/></w:r>"
    run = "<w:r><w:t>{}</w:t></w:r>"
    box = f"<w:r><w:pict><w:txbxContent><w:p>{run.format('box')}</w:p></w:txbxContent></w:pict></w:r>"
    inserted = f"<w:ins>{run.format('new')}</w:ins><w:sdt><w:sdtContent>{run.format(' chosen')}</w:sdtContent></w:sdt>"
    assert read(f"<w:p>{inserted}{note}{box}</w:p>") == "box\n\nnew chosen[^2][^e3]"
