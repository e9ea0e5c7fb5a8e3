"""What attachments cost: speed and peak memory of each format. `make bench ARGS="--parts documents"`.

Each file is made here by the library that people use for it, and read by a process of its own with the address space
of a confined child. The time is CPU time, without the start of the process; the peak is that of the whole process.
"""

import os
import random
import subprocess
import sys

import msgspec

from bench.figures import Line, Section
from bench.measure import Site
from bench.office import docx_of, eml_of, pdf_of, pptx_of, xlsx_of

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
        return pdf_of(self._paragraphs(4) for _ in range(self._size.pages))

    def docx(self) -> bytes:
        pages = range(self._size.pages)
        return docx_of((f"Chapter {page}", [self._paragraphs(1) for _ in range(4)]) for page in pages)

    def xlsx(self) -> bytes:
        rows = range(self._size.rows)
        return xlsx_of(
            {"Sheet": ([row, self._sentence(3), self._random.random(), self._sentence(1), row * 2] for row in rows)}
        )

    def pptx(self) -> bytes:
        pages = range(self._size.pages // 3)
        return pptx_of((f"Slide {page}", "\n".join(self._sentence(9) for _ in range(6))) for page in pages)

    def html(self) -> bytes:
        items = "".join(f'<li class="item"><a href="/{number}">link {number}</a></li>' for number in range(50))
        body = "".join(f"<h2>Part</h2><p>{self._paragraphs(1)}</p>" for _ in range(self._size.pages * 4))
        return f"<!doctype html><html><body><ul>{items}</ul><main>{body}</main></body></html>".encode()

    def text(self) -> bytes:
        return "\n".join(self._paragraphs(4) for _ in range(self._size.pages)).encode()

    def eml(self) -> bytes:
        headers = {"Subject": "The harvest", "From": "ada@example.org"}
        return eml_of(headers, self._paragraphs(4), "harvest.pdf", "application/pdf", self.pdf())

    def _sentence(self, words: int) -> str:
        return " ".join(self._random.choices(TEXT.split(), k=words)).capitalize()

    def _paragraphs(self, count: int) -> str:
        return "\n".join(f"{'. '.join(self._sentence(14) for _ in range(6))}." for _ in range(count))


def measure_documents(site: Site) -> list[Section]:
    site.step("documents")
    size = QUICK if site.is_quick else FULL
    writer = Writer(size)
    makers = (writer.text, writer.html, writer.pdf, writer.docx, writer.xlsx, writer.pptx, writer.eml)
    lines = [measure_file(maker.__name__, maker(), size.rounds) for maker in makers]
    note = (
        "The CPU time of one file, and the peak memory of the process that reads it, with all parsers. A section is a"
        " page, a sheet or a slide."
    )
    return [Section(title="Documents to text", note=note, lines=lines)]


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
