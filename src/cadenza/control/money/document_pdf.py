"""A document as PDF. The same document gives the same bytes: its dates are its own, and the fonts are embedded.

Importing it loads the PDF library, so it is imported with the first PDF. DejaVu Sans has the letters of Europe, the
Caucasus and the Middle East (left to right, and not joined). Droid Sans Fallback has those of Chinese, Japanese and
Korean; it is read only if a document needs it. A character that neither has is shown as an empty box.
"""

import io
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby

from reportlab.lib.pagesizes import A4
from reportlab.pdfbase.pdfmetrics import registerFont
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas

from cadenza.core.documents import DocumentFacts, Party, class_words
from cadenza.core.money import format_dollars

FONTS = {"text": "DejaVuSans.ttf", "bold": "DejaVuSans-Bold.ttf", "wide": "DroidSansFallback.ttf"}
WIDTH, HEIGHT = A4
LEFT, RIGHT, TOP, BOTTOM = 60.0, WIDTH - 60.0, HEIGHT - 64.0, 72.0
SIZE, SMALL, LARGE = 9.5, 7.5, 20.0
LEADING = 14.0
HALF = (LEFT + RIGHT) / 2 + 10
GREY = 0.42
COLUMN, COLUMN_EXTRA = 68.0, 22.0
CHARGES_HEAD = ("Class", "Requests", "Tokens in", "Cached", "Tokens out", "Charged")

Cells = tuple[str, ...]


def render_pdf(facts: DocumentFacts, digest: bytes) -> bytes:
    """Draw a document. `digest` is that of its facts."""
    output = io.BytesIO()
    canvas = Canvas(output, pagesize=A4, invariant=1, pageCompression=1, lang="en")
    canvas.setTitle(f"{facts.title} {facts.number}")
    canvas.setAuthor(facts.seller.name)
    canvas.setCreator("Cadenza")
    writer = _PageWriter(canvas, f"{facts.number} · SHA-256 of its facts: {digest.hex()}")
    _draw(writer, facts)
    writer.end()
    canvas.save()
    return output.getvalue()


def _draw(writer: "_PageWriter", facts: DocumentFacts) -> None:
    writer.write(facts.title, LEFT, LARGE, "bold")
    writer.down(34)
    top = writer.y
    ends = []
    for at, heading, party in ((LEFT, "From", facts.seller), (HALF, "To", facts.buyer)):
        writer.y = top
        writer.write(heading, at, SMALL, is_grey=True)
        writer.down()
        for number, line in enumerate(_lines(party)):
            writer.wrap(line, at, (RIGHT - LEFT) / 2 - 20, "bold" if number == 0 else "text")
        ends.append(writer.y)
    writer.y = min(ends) - LEADING
    for label, value in facts.about():
        writer.write(label, LEFT, is_grey=True)
        writer.wrap(value, LEFT + 110, RIGHT - LEFT - 110)
    writer.down()
    total = (facts.total_label, facts.total)
    writer.table(("", f"Amount ({facts.currency})"), facts.rows(), total)
    if facts.charges:
        writer.down()
        writer.write("Requests by class", LEFT, SIZE + 1, "bold")
        writer.down(20)
        rows = [
            (
                class_words(one.class_id),
                *(
                    f"{count:,}"
                    for count in (one.requests, one.prompt_tokens, one.cached_tokens, one.completion_tokens)
                ),
                format_dollars(one.amount_nano),
            )
            for one in facts.charges
        ]
        writer.table(CHARGES_HEAD, rows)
    if facts.note:
        writer.down()
        writer.wrap(facts.note, LEFT, RIGHT - LEFT)


def _lines(party: Party) -> list[str]:
    return [party.name, *party.address.splitlines(), *([f"Tax id {party.tax_id}"] if party.tax_id else [])]


class _PageWriter:
    """Writes text from the top of a page downwards, and begins another page where it ends."""

    def __init__(self, canvas: Canvas, footer: str) -> None:
        self._canvas = canvas
        self._footer = footer
        self._page = 1
        self.y = TOP

    def end(self) -> None:
        self._canvas.setFillGray(GREY)
        self._draw(self._footer, LEFT, 44, SMALL - 1, "text")
        page = str(self._page)
        self._draw(page, RIGHT - _width(page, SMALL - 1, "text"), 44, SMALL - 1, "text")
        self._canvas.showPage()

    def down(self, points: float = LEADING) -> None:
        self.y -= points
        if self.y < BOTTOM:
            self.end()
            self._page += 1
            self.y = TOP

    def write(self, text: str, x: float, size: float = SIZE, font: str = "text", *, is_grey: bool = False) -> None:
        self._canvas.setFillGray(GREY if is_grey else 0)
        self._draw(text, x, self.y, size, font)

    def wrap(self, text: str, x: float, width: float, font: str = "text") -> None:
        """Write text in as many lines as it needs, and go below it."""
        for line in _wrap(text, width, SIZE, font):
            self.write(line, x, font=font)
            self.down()

    def table(self, head: Cells, rows: Sequence[Cells], total: Cells | None = None) -> None:
        """The first column is text, the others are numbers."""
        self._row(head, is_grey=True)
        for row in rows:
            self._row(row)
        if total:
            self._row(total, "bold")

    def _row(self, cells: Cells, font: str = "text", *, is_grey: bool = False) -> None:
        label, *numbers = cells
        for place, number in enumerate(reversed(numbers)):
            right = RIGHT - place * COLUMN - (COLUMN_EXTRA if place else 0)
            self.write(number, right - _width(number, SIZE, font), font=font, is_grey=is_grey)
        width = RIGHT - LEFT - len(numbers) * COLUMN - COLUMN_EXTRA
        for place, line in enumerate(_wrap(label, width, SIZE, font)):
            if place:
                self.down()
            self.write(line, LEFT, font=font, is_grey=is_grey)
        self._canvas.setStrokeGray(0.82)
        self._canvas.setLineWidth(0.5)
        self._canvas.line(LEFT, self.y - 5, RIGHT, self.y - 5)
        self.down(LEADING + 4)

    def _draw(self, text: str, x: float, y: float, size: float, font: str) -> None:
        for name, run in _runs(text, font):
            self._canvas.setFont(_font(name).fontName, size)
            self._canvas.drawString(x, y, run)
            x += _font(name).stringWidth(run, size)


@cache
def _font(name: str) -> TTFont:
    """Read a font, once. The library finds fonts by their names in its own register."""
    font = TTFont(
        f"Cadenza-{name}", io.BytesIO(files("cadenza.control.money").joinpath("fonts", FONTS[name]).read_bytes())
    )
    registerFont(font)
    return font


def _runs(text: str, font: str) -> Iterator[tuple[str, str]]:
    """The parts of a text, each with the first font that has its characters."""

    def font_of(character: str) -> str:
        code = ord(character)
        if code in _font(font).face.charToGlyph:
            return font
        return "wide" if code in _font("wide").face.charToGlyph else font

    for name, run in groupby(text, font_of):
        yield name, "".join(run)


def _width(text: str, size: float, font: str) -> float:
    return sum([float(_font(name).stringWidth(run, size)) for name, run in _runs(text, font)])


def _wrap(text: str, width: float, size: float, font: str) -> list[str]:
    """Lines of at most this width. They end at blanks; a word that is wider, or without blanks, is cut."""
    lines, line = list[str](), ""
    for character in text:
        if _width(line + character, size, font) <= width:
            line += character
            continue
        head, blank, tail = line.rpartition(" ")
        lines.append(head if blank else line)
        line = (tail if blank else "") + character
    return [*lines, line]
