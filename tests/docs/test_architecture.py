"""docs/architecture.md is true: its paths exist, it names every package, and its ways are as short as it says."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "cadenza"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PATH = re.compile(r"`((?:[a-z0-9_]+/)+(?:[a-z0-9_]+\.[a-z]+)?|[a-z_]+\.py)`")
STEP = re.compile(r"^\| \d+ \| `([a-z0-9_/.]+)`", re.MULTILINE)
CHAT_FILES_MAX, CHAT_LINES_MAX = 25, 4700
ATTACHMENT_FILES_MAX = 12


def section(title: str) -> str:
    """The text below one heading."""
    _, _, rest = PAGE.partition(f"## {title}\n")
    return rest.partition("\n## ")[0]


def steps(title: str) -> list[Path]:
    """The files of a numbered table."""
    return [SOURCE / path for path in STEP.findall(section(title))]


@pytest.mark.parametrize("path", sorted({*PATH.findall(PAGE)}))
def test_every_path_exists(path: str) -> None:
    """A path is one of the source; a bare name or folder may be inside of the package that the sentence is about."""
    inside = any(SOURCE.rglob(path.rstrip("/"))) if path.count("/") <= path.endswith("/") else False
    assert (SOURCE / path).exists() or inside


def test_the_table_names_every_package() -> None:
    """Each folder and file at the top of the source is in the first table, and each folder in the picture."""
    there = {f"{path.name}/" if path.is_dir() else path.name for path in SOURCE.iterdir() if path.name[0] != "_"}
    named = set(re.findall(r"^\| `([a-z_]+(?:/|\.py))` \|", PAGE.partition("## ")[0], re.MULTILINE))
    assert named == there
    picture = (ROOT / "docs" / "rooms.svg").read_text()
    assert {name for name in there if name.endswith("/") and name not in picture} == set()


def test_a_plain_chat_is_a_short_read() -> None:
    """The way from the socket to the ledger is at most 25 files with 4,700 lines."""
    files = steps("One chat request, file by file")
    assert 0 < len(files) == len({*files}) <= CHAT_FILES_MAX
    assert sum(len(file.read_text().splitlines()) for file in files) <= CHAT_LINES_MAX


def test_a_file_attachment_is_a_short_read() -> None:
    """The way of an attachment is at most 12 files."""
    assert 0 < len(steps("A file attachment, file by file")) <= ATTACHMENT_FILES_MAX
