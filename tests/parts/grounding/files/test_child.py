"""The work of the child on one task, without its process; file_data to bytes, or a reason why not."""

import base64
import json
from contextlib import suppress
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.tokens import Tokenizer
from cadenza.parts.grounding.files.child import answer, decode_file_data
from cadenza.parts.grounding.files.messages import FileTask, PageTask, TokenBudget
from cadenza.parts.grounding.files.questions import AskedOfFiles
from cadenza.parts.grounding.files.records import RankedDocument, Unreadable

TEXT = "The sea was calm. " * 200
BUDGET = TokenBudget(20_000, 20_000)


def file_data(text: str) -> bytearray:
    return bytearray(b'"' + base64.b64encode(text.encode()) + b'"')


def test_characters_that_are_no_text_are_removed() -> None:
    """A control character cannot reach the model or break a reply; line breaks stay."""
    document = answer(FileTask("a.txt", AskedOfFiles(""), BUDGET), file_data(f"{TEXT}\x1b[31m\r\nend"), Tokenizer())
    assert isinstance(document, RankedDocument)
    text = "".join(passage.text for passage in document.passages)
    assert "\x1b" not in text
    assert text.endswith("end")


def test_a_body_is_a_file_or_a_page() -> None:
    """That of a file part is a JSON string; pages come as they are."""
    tokenizer = Tokenizer()
    sent = answer(FileTask("a.txt", AskedOfFiles(""), BUDGET), file_data(TEXT), tokenizer)
    page = answer(
        PageTask("https://a.example/", "text/plain", AskedOfFiles(""), BUDGET), bytearray(TEXT.encode()), tokenizer
    )
    assert isinstance(sent, RankedDocument)
    assert isinstance(page, RankedDocument)
    assert [passage.text for passage in sent.passages] == [passage.text for passage in page.passages]
    assert not tokenizer.is_loaded


def test_a_file_without_text_has_a_reason() -> None:
    """Blanks are not text."""
    with pytest.raises(Unreadable):
        answer(FileTask("a.txt", AskedOfFiles(""), BUDGET), file_data(" \n\t"), Tokenizer())


DATA = bytes(range(256)) + b"?>~"
BASE64 = base64.b64encode(DATA).decode()
LINES = "\r\n".join(BASE64[start : start + 76] for start in range(0, len(BASE64), 76))
URL_SAFE = base64.urlsafe_b64encode(DATA).decode()


def decode(text: str) -> tuple[str, bytes]:
    return decode_file_data(json.dumps(text).encode())


@pytest.mark.parametrize(
    "payload",
    [BASE64, BASE64.rstrip("="), URL_SAFE, URL_SAFE.rstrip("="), LINES, f" {BASE64}\n"],
    ids=["padded", "not padded", "URL-safe", "URL-safe, not padded", "in lines", "with blanks around"],
)
def test_base64_is_read_as_it_comes(payload: str) -> None:
    """Bare or in a data URL, with or without padding, in both alphabets, with line breaks."""
    assert decode(payload) == ("", DATA)
    assert decode(f"data:application/pdf;base64,{payload}") == ("application/pdf", DATA)


@pytest.mark.parametrize(
    ("head", "media_type"),
    [
        ("data:;base64", ""),
        ("data:application/pdf;name=a,b.pdf;base64".replace(",", "%2C"), "application/pdf"),
        ("data:text/plain;charset=utf-8;base64", "text/plain"),
        ("DATA:Text/HTML;Base64", "text/html"),
        ("data:application/pdf; base64", "application/pdf"),
        ("data:application/pdf;base64;name=x", "application/pdf"),
    ],
)
def test_a_data_url_may_have_parameters(head: str, media_type: str) -> None:
    """Its media type is read, and the other parameters are ignored."""
    assert decode(f"{head},{BASE64}") == (media_type, DATA)


def test_a_data_url_may_be_percent_encoded() -> None:
    """Without base64, and base64 whose own characters are encoded."""
    assert decode("data:text/plain;charset=utf-8,caf%C3%A9%20%26%20tea") == ("text/plain", "café & tea".encode())
    assert decode(f"data:,{quote(DATA)}") == ("", DATA)
    assert decode(f"data:;base64,{quote(BASE64, safe='')}") == ("", DATA)


def test_json_escapes_are_undone() -> None:
    r"""A slash may be escaped, and so may any character."""
    escaped = BASE64.replace("/", "\\/").replace("A", "\\u0041")
    assert decode_file_data(f'"data:text\\/plain;base64,{escaped}"'.encode()) == ("text/plain", DATA)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty"),
        ("data:application/pdf;base64,", "it is empty"),
        ("data:application/pdf;base64", "its data URL has no comma"),
        ("Hello, world", "its file_data is neither a data URL nor base64"),
        ("AAAAA", "its file_data is neither a data URL nor base64"),
        ("AA=A", "its file_data is neither a data URL nor base64"),
        ("https://example.org/a.pdf", "its file_data is neither a data URL nor base64"),
        ("data:;base64,é", "its file_data is neither a data URL nor base64"),
    ],
)
def test_anything_else_has_a_reason(text: str, reason: str) -> None:
    """It says what is wrong, without the data."""
    with pytest.raises(Unreadable) as caught:
        decode(text)
    assert caught.value.reason == reason


@pytest.mark.parametrize("raw", [b"", b'"', b"7", b"null", b'"\\x"', b'"\xff"', b'"\\ud800"'])
def test_what_is_not_a_json_string_has_a_reason(raw: bytes) -> None:
    """The service sends only strings; the child does not rely on it."""
    with pytest.raises(Unreadable):
        decode_file_data(raw)


@given(st.binary(max_size=100))
def test_no_bytes_are_an_error(raw: bytes) -> None:
    """Anything between quotes is bytes, or Unreadable."""
    with suppress(Unreadable):
        decode_file_data(b'"' + raw + b'"')
