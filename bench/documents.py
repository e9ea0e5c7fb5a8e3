"""What attachments cost: speed and peak memory of each format. Run it as `python -m bench.documents`.

Each file is made here by the library that people use for it, and read by a process of its own with the address space
of a confined child. The time is CPU time, without the start of the process; the peak is that of the whole process.
"""

import io
import os
import random
import subprocess
import sys
from collections.abc import Callable
from email.message import EmailMessage

import docx
import fpdf
import msgspec
import openpyxl
import pptx

from bench.figures import Line, Section
from bench.report import render_section

MEMORY_BYTES = 768 * 1024 * 1024
MB = 1_000_000
TEXT = "the price of grain and water rose in every region while the harvest fell by a third of last year"
READ = f"""
import resource, sys, time
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES}, {MEMORY_BYTES}))
import msgspec
from cadenza.parts.grounding.files.formats.read import read_document
data = sys.stdin.buffer.read()
times_s = []
for _ in range(int(sys.argv[2])):
    began_s = time.process_time()
    sections = read_document(sys.argv[1], "", data)
    times_s.append(time.process_time() - began_s)
peak_kb = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
chars = sum(len(section.text) for section in sections)
sys.stdout.buffer.write(msgspec.json.encode([min(times_s), peak_kb, len(sections), chars]))
"""


class Size(msgspec.Struct, frozen=True):
    """How large the files are, and how often each is read."""

    pages: int
    rows: int
    rounds: int


FULL = Size(pages=300, rows=20_000, rounds=3)
QUICK = Size(pages=30, rows=2_000, rounds=1)


class Writer:
    """Writes one file of each format, the same in every run."""

    def __init__(self, size: Size) -> None:
        self._size = size
        self._random = random.Random(16)  # noqa: S311 it chooses words

    def pdf(self) -> bytes:
        pdf = fpdf.FPDF()
        pdf.set_font("Helvetica", size=11)
        for _ in range(self._size.pages):
            pdf.add_page()
            pdf.multi_cell(0, 6, self._paragraphs(4))
        return bytes(pdf.output())

    def docx(self) -> bytes:
        document, target = docx.Document(), io.BytesIO()
        for page in range(self._size.pages):
            document.add_heading(f"Chapter {page}", 1)
            for _ in range(4):
                document.add_paragraph(self._paragraphs(1))
        document.save(target)
        return target.getvalue()

    def xlsx(self) -> bytes:
        workbook, target = openpyxl.Workbook(), io.BytesIO()
        sheet = workbook.active
        for row in range(self._size.rows):
            sheet.append([row, self._sentence(3), self._random.random(), self._sentence(1), row * 2])
        workbook.save(target)
        return target.getvalue()

    def pptx(self) -> bytes:
        show, target = pptx.Presentation(), io.BytesIO()
        for page in range(self._size.pages // 3):
            slide = show.slides.add_slide(show.slide_layouts[1])
            slide.shapes.title.text = f"Slide {page}"
            slide.placeholders[1].text = "\n".join(self._sentence(9) for _ in range(6))
        show.save(target)
        return target.getvalue()

    def html(self) -> bytes:
        items = "".join(f'<li class="item"><a href="/{number}">link {number}</a></li>' for number in range(50))
        body = "".join(f"<h2>Part</h2><p>{self._paragraphs(1)}</p>" for _ in range(self._size.pages * 4))
        return f"<!doctype html><html><body><ul>{items}</ul><main>{body}</main></body></html>".encode()

    def text(self) -> bytes:
        return "\n".join(self._paragraphs(4) for _ in range(self._size.pages)).encode()

    def eml(self) -> bytes:
        message = EmailMessage()
        message["Subject"], message["From"] = "The harvest", "ada@example.org"
        message.set_content(self._paragraphs(4))
        message.add_attachment(self.pdf(), maintype="application", subtype="pdf", filename="harvest.pdf")
        return bytes(message)

    def _sentence(self, words: int) -> str:
        return " ".join(self._random.choices(TEXT.split(), k=words)).capitalize()

    def _paragraphs(self, count: int) -> str:
        return "\n".join(f"{'. '.join(self._sentence(14) for _ in range(6))}." for _ in range(count))


def measure_documents(size: Size) -> list[Section]:
    writer = Writer(size)
    makers: list[Callable[[], bytes]] = [
        writer.text, writer.html, writer.pdf, writer.docx, writer.xlsx, writer.pptx, writer.eml,
    ]  # fmt: skip
    return [
        Section(
            title="Documents to text",
            note="The CPU time of one file, and the peak memory of the process that reads it, with all parsers. "
            "A section is a page, a sheet or a slide.",
            lines=[measure_file(maker.__name__, maker(), size.rounds) for maker in makers],
        )
    ]


def measure_file(kind: str, data: bytes, rounds: int) -> Line:
    command = [sys.executable, "-c", READ, f"a.{kind}", str(rounds)]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, input=data, capture_output=True, env=environment, check=True)
    seconds, peak_kb, sections, chars = msgspec.json.decode(done.stdout, type=tuple[float, int, int, int])
    figures = {
        "file_mb": len(data) / MB,
        "sections": sections,
        "text_mb": chars / MB,
        "cpu_ms": 1000 * seconds,
        "text_mb_per_s": chars / MB / seconds,
        "sections_per_s": sections / seconds,
        "rss_peak_mb": peak_kb / 1024,
    }
    return Line(subject=kind.upper(), figures=figures)


if __name__ == "__main__":
    for section in measure_documents(QUICK if "--quick" in sys.argv else FULL):
        sys.stdout.write(render_section(section) + "\n\n")
