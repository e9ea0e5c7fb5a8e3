"""What may stand in a note."""

import pytest

from cadenza.core.errors import ControlError
from cadenza.parts.grounding.notes import NOTE_CHARS_MAX, clean_note


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("  I write British English. \n", "I write British English."),
        ("one\r\ntwo\rthree\n\nfour", "one\ntwo\nthree\n\nfour"),
        ("Grüße, 你好, 👩‍💻", "Grüße, 你好, 👩‍💻"),
        ("a\u00a0b", "a\u00a0b"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("x" * NOTE_CHARS_MAX + " \n", "x" * NOTE_CHARS_MAX),
        ("👩" * NOTE_CHARS_MAX, "👩" * NOTE_CHARS_MAX),
    ],
)
def test_a_note_is_trimmed_and_its_line_breaks_are_plain(typed: str, kept: str) -> None:
    """Everything else stays as it was typed."""
    assert clean_note(typed) == kept


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("", "must not be empty"),
        (" \r\n\t ", "must not be empty"),
        ("x" * (NOTE_CHARS_MAX + 1), "at most 1,000 characters; this one has 1,001"),
        ("a\0b", "control characters"),
        ("a\tb", "no tabs"),
        ("a\x1b[31mb", "control characters"),
        ("a\x85b", "control characters"),
        ("a\udc80b", "control characters"),
    ],
)
def test_what_is_no_note_is_refused(typed: str, reason: str) -> None:
    """The message says why, and does not repeat the text."""
    with pytest.raises(ControlError, match=reason) as refused:
        clean_note(typed)
    assert "a\x1b" not in refused.value.message
