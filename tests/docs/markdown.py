"""The code on the project's pages: fenced blocks, inline spans, and the commands in them."""

import re
from itertools import takewhile
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
CLIENTS = ROOT / "docs" / "clients.md"
DOCS = tuple(
    page
    for folder in (".", "platform", "parts", "parts/grounding", "guides")
    for page in sorted((ROOT / "docs" / folder).glob("*.md"))
)
PAGES = (README, *DOCS)

_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")
_CADENZA = re.compile(r"(?:^|[\s(/])cadenza ([a-z].*)")
_OPTION = re.compile(r"--[a-z][a-z-]*")


class Block(msgspec.Struct, frozen=True):
    """A fenced block: where it is, the section above it, its language and its text."""

    place: str
    section: str
    language: str
    text: str


class Shown(msgspec.Struct, frozen=True):
    """A `cadenza` command line on a page: the words of the command, and its options."""

    command: tuple[str, ...]
    options: tuple[str, ...]


def blocks(page: Path, *languages: str) -> list[Block]:
    """The blocks of a page, in order; with languages, only those."""
    text = page.read_text()
    found = [
        Block(
            f"{page.name}:{text.count(chr(10), 0, match.start()) + 1}",
            _section(text, match.start()),
            match[1],
            match[2],
        )
        for match in _FENCE.finditer(text)
    ]
    return [block for block in found if not languages or block.language in languages]


def code(page: Path) -> str:
    """Everything in code style: blocks and spans."""
    return "\n".join([*(block.text for block in blocks(page)), *_spans(page)])


def shown_commands(page: Path) -> list[Shown]:
    lines = [line for block in blocks(page, "bash") for line in block.text.splitlines()]
    found = filter(None, map(_CADENZA.search, [*lines, *_spans(page)]))
    return [_shown(match[1]) for match in found]


def _section(text: str, end: int) -> str:
    """The last heading before this place."""
    return [str(heading) for heading in ["", *_HEADING.findall(text, 0, end)]][-1]


def _spans(page: Path) -> list[str]:
    return [str(span) for span in _SPAN.findall(_FENCE.sub("", page.read_text()))]


def _shown(rest: str) -> Shown:
    depth = 3 if rest.startswith("class suite") else 2
    words = takewhile(lambda word: re.fullmatch("[a-z]+", word), rest.split()[:depth])
    return Shown(tuple(words), tuple(_OPTION.findall(rest)))
