"""The page that says what went wrong."""

from types import SimpleNamespace

import pytest
from starlette.exceptions import HTTPException

from cadenza.control.money.idempotency import Unconfirmed
from cadenza.core.errors import ControlError, Unknown
from cadenza.parts.site.errors import Missing, NotAllowed, PageError, TooMany, to_page_error
from cadenza.parts.site.render import Assets, Renderer
from cadenza.parts.site.sign_in.credentials import DeadLink
from cadenza.parts.site.sign_in.throttle import Throttled
from cadenza.store.store import ReportsBusy, StoreUnavailable, StoreUncertain


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


@pytest.mark.parametrize(
    ("error", "status", "wait_s"),
    [
        (StoreUncertain("The connection was lost."), 503, None),
        (Unconfirmed("reference"), 503, None),
        (StoreUnavailable("The store is away."), 429, "2"),
        (ReportsBusy(), 429, "5"),
        (Throttled("Slowly.", 0.05), 429, "1"),
        (Unknown("key"), 404, None),
        (DeadLink(), 404, None),
        (HTTPException(404), 404, None),
        (HTTPException(405), 405, None),
        (ControlError("Wrong."), 400, None),
    ],
)
def test_each_error_has_its_status(error: Exception, status: int, wait_s: str | None) -> None:
    """Only what changed nothing says when to try again: a change that may have been made is a 503."""
    problem = to_page_error(error)
    assert (problem.status, problem.headers.get("retry-after")) == (status, wait_s)


def test_a_message_is_escaped() -> None:
    """A message becomes text, never markup."""
    assert "<b>" not in render(PageError("<b>bold</b>"))
