"""The page that says what went wrong."""

from types import SimpleNamespace

import pytest

from cadenza.web.errors import Missing, NotAllowed, PageError, TooMany
from cadenza.web.render import Assets, Renderer


def render(problem: PageError) -> str:
    values = {"visit": SimpleNamespace(csrf=""), "account": None, "note": None, "problem": problem, "has_menu": False}
    return bytes(Renderer(Assets()).page("problem.html", values).body).decode()


@pytest.mark.parametrize("problem", [PageError("Wrong."), Missing(), NotAllowed(), TooMany("Slowly.", 3.2)])
def test_a_problem_has_a_title_and_a_message(problem: PageError) -> None:
    """Every error becomes a page that names its status, with its title as the one heading, and its message."""
    page = render(problem)
    assert page.count("<h1>") == 1
    assert f"<h1>{problem.title}</h1>" in page
    assert problem.message in page
    assert f"Error {problem.status}" in page


def test_too_many_requests_are_told_when_to_try_again() -> None:
    """After too many requests the page says in how many seconds to try again: at least one."""
    assert "You can try again in 3 s." in render(TooMany("Slowly.", 3.2))
    assert "You can try again in 1 s." in render(TooMany("Slowly.", 0.05))
    assert "try again in" not in render(Missing())


def test_a_message_is_escaped() -> None:
    """A message becomes text, never markup."""
    assert "<b>" not in render(PageError("<b>bold</b>"))
