"""The decision by a model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.grounding.model_decision import decision_messages, read_decision


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("yes", True),
        ("No.", False),
        ("**YES**, because prices change", True),
        ("Answer: no", False),
        ("yes or no", None),
        ("maybe", None),
        ("", None),
        ("nothing", None),
        ("x" * 1000 + " yes", None),
    ],
)
def test_an_answer_is_read(answer: str, expected: bool | None) -> None:
    """An answer is yes, no, or neither."""
    assert read_decision(answer) is expected


@given(st.lists(st.text(max_size=3000), max_size=8))
def test_messages_are_quoted_and_bounded(asked: list[str]) -> None:
    """What the person wrote is quoted line by line, and only so much of it."""
    system, user = decision_messages(asked)
    lines = user["content"].split("\n")
    assert system["role"] == "system"
    assert lines[-1] == "Search? yes or no:"
    assert all(line.startswith("> ") or line == "" for line in lines[:-1])
    assert len("".join(lines)) < 20_000


def test_the_last_messages_are_sent() -> None:
    """The last four messages are sent, oldest first."""
    content = decision_messages(["one", "two", "three", "four", "five"])[1]["content"]
    assert [line for line in content.split("\n") if len(line) > 2][:-1] == ["> two", "> three", "> four", "> five"]
