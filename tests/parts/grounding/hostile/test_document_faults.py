"""A parser that fails on a file makes the file unreadable, and is not taken for a failure of the service."""

import random
from contextlib import suppress

import pytest

from cadenza.children.seccomp import this_machine
from cadenza.core.errors import UnreadableAttachment
from cadenza.parts.grounding.files.reader import (
    ReaderBusy,
)
from cadenza.parts.grounding.files.records import FetchedPage
from tests.parts.grounding.hostile.odd_files import break_file, odd_files, seeds
from tests.parts.grounding.hostile.test_documents import reading, sent

FAULTY = "tests.parts.grounding.hostile.faulty_reader"
SECRET = "zanzibar"
BROKEN_FILES = 80  # of each format
QUESTION = "What does it say?"

pytestmark = pytest.mark.skipif(this_machine() is None, reason="needs the filter")


@pytest.mark.parametrize(
    "error", ["ValueError", "RecursionError", "PermissionError", "ModuleNotFoundError", "StrangeError"]
)
async def test_a_file_that_a_parser_fails_on_is_named(error: str) -> None:
    """The client is told which file it is; the log has the parser and the class of the error, and no content."""
    async with reading(module=FAULTY) as documents:
        bad = sent(f"{SECRET}.txt", f"{error} {SECRET}")
        with pytest.raises(UnreadableAttachment) as caught:
            await documents.read(sent("a.txt", "text"), bad)
        assert caught.value.name == f"{SECRET}.txt"
        assert caught.value.reason.startswith("it is damaged, or has something in it that cannot be read here")
        [warning] = documents.warnings
        assert warning["event"] == "a parser failed on a document"
        assert (warning["parser"], warning["error"]) == ("passages", error)
        assert SECRET not in documents.output.getvalue()
        assert len(await documents.read(sent("a.txt", "text"), sent("b.txt", "text"))) == 2


async def test_a_page_that_a_parser_fails_on_is_left_out() -> None:
    """The other pages are read, and the log says that a parser failed."""
    texts = (b"first", f"ValueError {SECRET}".encode(), b"last")
    pages = [FetchedPage(f"https://a.example/{place}", "text/plain", text) for place, text in enumerate(texts)]
    async with reading(module=FAULTY) as documents:
        first, bad, last = await documents.reader.read_pages("owner", pages, QUESTION, 1000)
        assert first
        assert bad is None
        assert last
        assert [warning["error"] for warning in documents.warnings] == ["ValueError"]
        assert SECRET not in documents.output.getvalue()


async def test_a_file_that_crashes_its_parser_is_named() -> None:
    """A crash is the file's fault, too; the log has the signal, and the next files are read by a new child."""
    async with reading(module=FAULTY) as documents:
        with pytest.raises(UnreadableAttachment) as caught:
            await documents.read(sent("a.txt", "text"), sent("b.txt", f"crash {SECRET}"))
        assert caught.value.name == "b.txt"
        assert [warning["signal"] for warning in documents.warnings] == ["SIGSEGV"]
        assert SECRET not in documents.output.getvalue()
        assert len(await documents.read(sent("a.txt", "text"), sent("b.txt", "text"))) == 2


async def test_a_child_that_ends_is_our_failure() -> None:
    """A child that exits while it reads says nothing about the file: the request is told to try again."""
    async with reading(module=FAULTY) as documents:
        with pytest.raises(ReaderBusy):
            await documents.read(sent("a.txt", "text"), sent("b.txt", "exit"))
        assert [warning["reason"] for warning in documents.warnings] == ["Died"]


async def test_no_feature_of_a_file_needs_what_the_child_gave_up() -> None:
    """Whatever encoding, font, image, encryption or part a file has: it is read, or refused for a known reason."""
    async with reading() as documents:
        reasons = dict[str, str]()
        for name, data in odd_files():
            try:
                await documents.reader.measure("owner", name, data)
            except UnreadableAttachment as error:
                reasons[name] = error.reason
        assert documents.warnings == []
        assert sum(name.startswith("locked") for name in reasons) >= 3
        assert [name for name in reasons if name.startswith("part")] == []


@pytest.mark.slow(reason="a thousand broken files")
@pytest.mark.parametrize("kind", sorted(seeds()))
async def test_no_broken_file_is_a_fault(kind: str) -> None:
    """Files that are broken at random are read in part or refused: no parser fails in a way that is not foreseen."""
    chance, good = random.Random(kind), seeds()[kind]
    async with reading() as documents:
        for _ in range(BROKEN_FILES):
            data = break_file(chance, good)
            await documents.reader.read_pages(
                "owner", [FetchedPage(f"https://a.example/a.{kind}", "", data)], QUESTION, 300
            )
            with suppress(UnreadableAttachment):
                await documents.reader.measure("owner", f"a.{kind}", data)
        assert documents.warnings == []
