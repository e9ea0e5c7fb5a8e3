"""The work of the child on one task, without its process."""

import base64

import pytest

from cadenza.core.tokens import Tokenizer
from cadenza.grounding.files.child import answer
from cadenza.grounding.files.messages import FileTask, PageTask, Passages, PassagesTask, Room
from cadenza.grounding.files.records import RankedDocument, Unreadable

TEXT = "The sea was calm. " * 300
ROOM = Room(20_000, 20_000)


def file_data(text: str) -> bytearray:
    return bytearray(b'"' + base64.b64encode(text.encode()) + b'"')


def test_characters_that_are_no_text_are_removed() -> None:
    """A control character cannot reach the model or break a reply; line breaks stay."""
    document = answer(FileTask("a.txt", "", ROOM), file_data(f"{TEXT}\x1b[31m\r\nend"), Tokenizer())
    assert isinstance(document, RankedDocument)
    text = "".join(passage.text for passage in document.passages)
    assert "\x1b" not in text
    assert text.endswith("end")


def test_a_body_is_a_file_or_a_page() -> None:
    """That of a file part is a JSON string; pages, and files for an index, come as they are."""
    tokenizer = Tokenizer()
    sent = answer(FileTask("a.txt", "", ROOM), file_data(TEXT), tokenizer)
    page = answer(PageTask("https://a.example/", "text/plain", "", ROOM), bytearray(TEXT.encode()), tokenizer)
    assert isinstance(sent, RankedDocument)
    assert isinstance(page, RankedDocument)
    assert [passage.text for passage in sent.passages] == [passage.text for passage in page.passages]
    passages = answer(PassagesTask("a.txt"), bytearray(TEXT.encode()), tokenizer)
    assert isinstance(passages, Passages)
    assert [passage.text for passage in passages.passages] == [passage.text.strip() for passage in sent.passages]
    assert not tokenizer.is_loaded


def test_a_file_without_text_has_a_reason() -> None:
    """Blanks are not text."""
    with pytest.raises(Unreadable):
        answer(FileTask("a.txt", "", ROOM), file_data(" \n\t"), Tokenizer())
