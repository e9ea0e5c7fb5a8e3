"""The words of the chat page for errors whose words of the API name fields."""

import pytest

from cadenza.core.errors import ContextOverflow, InvalidRequest, NotTaken, UnreadableAttachment
from cadenza.web.chat.stream import in_plain_words

TOO_LONG = (
    "The conversation is too long: it has 12,345 tokens, and the class takes 8,000. "
    "Begin a new one, or choose another class."
)


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
            TOO_LONG,
        ),
    ],
)
def test_errors_for_people(error: InvalidRequest, words: str) -> None:
    """Each says what is wrong and what to do, and stays a 400 that is not retried."""
    said = in_plain_words(error)
    assert (said.message, said.status, said.retry_helps) == (words, 400, False)
