"""The words of the chat page for errors whose words of the API name fields."""

import pytest

from cadenza.core.errors import ContextOverflow, InsufficientCredit, InvalidRequest, NotTaken, UnreadableAttachment
from cadenza.parts.site.chat.stream import in_plain_words

WINDOWS = {"mezzo": 8000, "forte": 12345, "fortissimo": 20000}
TOO_LONG = "This is too long: with the conversation before it, it has {} tokens, and the class takes 8,000. "


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UnreadableAttachment("locked.pdf", "it is encrypted"), "locked.pdf cannot be read: it is encrypted."),
        (NotTaken("messages: …", "forte", "vision"), "forte takes no images. Remove them."),
        (
            NotTaken("messages: …", "mezzo", "files", ("forte", "fortissimo")),
            "mezzo takes no files. Remove them, or choose forte or fortissimo.",
        ),
        (NotTaken("tools: custom.", "mezzo", "custom_tools"), "tools: custom."),
        (InvalidRequest("Other words."), "Other words."),
        (
            ContextOverflow(8000, 12345),
            TOO_LONG.format("12,345") + "Shorten this message, begin a new conversation, or choose fortissimo.",
        ),
        (
            ContextOverflow(8000, 20001),
            TOO_LONG.format("20,001") + "Shorten this message or begin a new conversation.",
        ),
        (
            InsufficientCredit("…", 99_999, 210_001),
            "You have less than $0.0001 left; this message needs at least $0.0003. Add credit.",
        ),
        (
            InsufficientCredit("…", 0, 100_000),
            "You have $0.00 left; this message needs at least $0.0001. Add credit.",
        ),
        (InsufficientCredit("The account has a debt."), "The account has a debt."),
    ],
)
def test_errors_for_people(error: InvalidRequest | InsufficientCredit, words: str) -> None:
    """Each says what is wrong and what to do, and keeps its status; none is retried."""
    said = in_plain_words(error, WINDOWS)
    assert (said.message, said.status, said.retry_helps) == (words, error.status, False)
