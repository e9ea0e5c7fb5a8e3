"""Refusals are recognized by field, by filter and by wording, in the sentences of refusals.txt."""

from pathlib import Path

import pytest

from cadenza.parts.evaluation.refusals import is_refusal

REFUSALS, ANSWERS = (
    block.splitlines()[1:] for block in (Path(__file__).parent / "refusals.txt").read_text().split("\n\n")
)


@pytest.mark.parametrize("text", REFUSALS)
def test_refusals_are_found(text: str) -> None:
    """Each of these sentences, in ten languages, refuses."""
    assert is_refusal(text)


@pytest.mark.parametrize("text", ANSWERS)
def test_answers_are_not_refusals(text: str) -> None:
    """None of these sentences refuses, though many say that something cannot be done."""
    assert not is_refusal(text)


def test_the_upstream_may_say_so_itself() -> None:
    """The field and the finish reason count; wording far into an answer does not."""
    assert is_refusal("", refusal="No.")
    assert is_refusal("", finish_reason="content_filter")
    assert not is_refusal("A long answer. " * 30 + "I can't help with the rest.")
