"""The code that stands in the project's pages: fenced blocks by language, inline spans, and commands within them."""

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").glob("*.md")))

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")
_CADENZA = re.compile(r"(?:^|[\s(/])cadenza ([a-z].*)")
_OPTION = re.compile(r"--[a-z][a-z-]*")
_SHELL = {"", "bash", "sh"}


class Shown(msgspec.Struct, frozen=True):
    """A `cadenza` command line as a page shows it: the command's words, and its options."""

    command: tuple[str, ...]
    options: tuple[str, ...]


def blocks(page: Path, *languages: str) -> list[str]:
    return [body for language, body in _FENCE.findall(page.read_text()) if language in languages]


def commands(page: Path, program: str) -> list[str]:
    """The commands of the page's bash blocks that start with this program, each with all of its lines."""
    return [line for body in blocks(page, "bash", "sh") for line in _split(body) if line.split()[0] == program]


def code(page: Path) -> str:
    """All that stands in code, be it a block or a span."""
    text = page.read_text()
    return "\n".join([*(body for _, body in _FENCE.findall(text)), *_SPAN.findall(_FENCE.sub("", text))])


def shown_commands(page: Path) -> list[Shown]:
    text = page.read_text()
    lines = [line for body in blocks(page, *_SHELL) for line in body.splitlines()]
    found = filter(None, map(_CADENZA.search, [*lines, *_SPAN.findall(_FENCE.sub("", text))]))
    return [_shown(match[1]) for match in found]


def _shown(rest: str) -> Shown:
    words = takewhile(lambda word: re.fullmatch("[a-z]+", word), rest.split()[:2])
    return Shown(tuple(words), tuple(_OPTION.findall(rest)))


def _split(body: str) -> Iterator[str]:
    """Commands of a block. A line goes on in the next one after a backslash, or while a quotation is open."""
    waiting = ""
    for line in body.splitlines():
        waiting += line
        if not waiting.strip():
            continue
        if _is_whole(waiting):
            yield waiting.strip()
            waiting = ""
        else:
            waiting += "\n"


def _is_whole(text: str) -> bool:
    if text.endswith("\\"):
        return False
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True
