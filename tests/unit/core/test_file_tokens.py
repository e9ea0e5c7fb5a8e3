"""Files that go to a model as they are: credit is held for what a provider may count, by what the file is."""

import base64

import msgspec
import pytest

from cadenza.core.file_tokens import PAGE_TOKENS, FileTokens, tokens_of_file
from cadenza.core.image_tokens import IMAGE_TOKENS_MAX
from tests import made_files as made
from tests.tokens import count_tokens

PROSE = "The ship left the harbour at nine in the morning, and nobody was there to wave. " * 6_000
CHINESE = "船在上午九点离开了港口，没有人在那里挥手。" * 4_000
CODE = "".join(f"def f{n}(x: int) -> int:\n    return x * {n * 7919} + 0x{n:04x}\n\n" for n in range(4_000))
NUMBERS = "".join(f"{n * 7919 % 1000}.{n % 10},{n * 104729 % 100},{n}\n" for n in range(20_000))
PNG = b"\x89PNG\r\n\x1a\n" + bytes(500_000)
MP3 = b"ID3\x04" + bytes(500_000)


def measured(data: bytes | str, media_type: str = "", prefix: str = "") -> FileTokens:
    raw = data.encode() if isinstance(data, str) else data
    url = f"data:{media_type};base64," if media_type else ""
    return tokens_of_file(msgspec.Raw(msgspec.json.encode(prefix + url + base64.b64encode(raw).decode())))


@pytest.mark.parametrize("media_type", ["", "text/plain", "text/csv", "application/octet-stream", "application/pdf"])
@pytest.mark.parametrize("text", [PROSE, CHINESE, CODE, NUMBERS], ids=["prose", "Chinese", "code", "numbers"])
def test_credit_is_held_for_the_tokens_of_a_text(text: str, media_type: str) -> None:
    """As many as it has bytes: other tokenizers count more than ours. A wrong type changes nothing."""
    tokens = measured(text, media_type)
    assert 1.5 * count_tokens(text) <= len(text.encode()) <= tokens.most <= len(text.encode()) + 100
    assert tokens.usual < tokens.most
    assert tokens.is_certain


@pytest.mark.parametrize("media_type", ["", "application/pdf"])
def test_credit_is_held_for_each_page_of_a_pdf(media_type: str) -> None:
    """A page costs its text and its picture, however few bytes it has; a long PDF is held for by its bytes."""
    pdf = made.make_pdf(["short"] * 12)
    assert measured(pdf, media_type).most >= 12 * PAGE_TOKENS > len(pdf)
    large = b"%PDF-1.7\n" + bytes(2_000_000)
    assert 2_000_000 <= measured(large, media_type).most <= 2_100_000
    assert measured(large).usual == len(large) // 240
    assert not measured(large).is_certain
    assert measured(b"%PDF-1.7\n").most >= PAGE_TOKENS  # one whose pages are packed


def test_an_escaped_slash_hides_no_page() -> None:
    """JSON may write a slash with a backslash before it, in the media type and in base64."""
    raw = msgspec.json.encode("data:application/pdf;base64," + base64.b64encode(made.make_pdf(["a"] * 12)).decode())
    assert tokens_of_file(msgspec.Raw(raw.replace(b"/", b"\\/"))).most >= 12 * PAGE_TOKENS


def test_an_office_file_is_packed_text() -> None:
    """It is held for by its bytes, which are a third of its text."""
    data = made.make_docx()
    assert len(data) <= measured(data).most <= len(data) + 100


def test_images_and_sounds_have_few_tokens() -> None:
    """If both their type and their bytes say what they are; a text that poses as one is a text."""
    assert measured(PNG, "image/png").most == IMAGE_TOKENS_MAX
    assert measured(MP3, "audio/mpeg").most < 25_000
    for data, media_type in ((PNG, "text/plain"), (PNG, ""), (PROSE.encode(), "image/png"), (MP3, "")):
        assert measured(data, media_type).most >= len(data)


@pytest.mark.parametrize("string", ["", "data:", "data:,", "data:;base64,", "=", "é", "%%%", "data:text/plain,%41%42"])
def test_data_that_is_no_base64_is_measured_too(string: str) -> None:
    """The provider refuses it, or takes it as it is: by its bytes."""
    tokens = tokens_of_file(msgspec.Raw(msgspec.json.encode(string)))
    assert 0 <= tokens.usual <= tokens.most <= len(string.encode()) + 2
