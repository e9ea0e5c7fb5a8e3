"""Every page and endpoint of the site: who is refused, whatever the table of routes lists."""

import re

import pytest

from cadenza.web.routes import Access, ApiEndpoint, Page
from cadenza.web.site_map import ROUTES
from tests.visitor import API, Visitor
from tests.web.test_sign_in import from_elsewhere

CLOSED = [one for one in ROUTES if one.access is not Access.ANYONE]
FOR_OPERATORS = [one for one in ROUTES if one.access is Access.OPERATOR]


def ask(visitor: Visitor, one: Page | ApiEndpoint) -> int:
    """Ask for a path with ids that do not exist, with the right token and without a body."""
    path = re.sub(r"\{[^}]*\}", "unknown", one.path)
    if isinstance(one, ApiEndpoint):
        path = API + path
    return visitor.send(one.method, path, b"", {"x-cadenza-csrf": visitor.csrf, **from_elsewhere()}).status


@pytest.mark.parametrize("one", CLOSED, ids=lambda one: f"{one.method} {type(one).__name__} {one.path}")
def test_a_stranger_is_refused(stranger: Visitor, one: Page | ApiEndpoint) -> None:
    """A page leads to the sign-in, and everything else is a 401."""
    assert ask(stranger, one) == (303 if isinstance(one, Page) and one.method == "GET" else 401)


def test_an_ordinary_account_is_no_operator(visitor: Visitor) -> None:
    """Every path below /operator is for operators, and refuses all others before it looks at what was sent."""
    assert {one.path for one in ROUTES if one.path.startswith("/operator")} == {one.path for one in FOR_OPERATORS}
    assert [ask(visitor, one) for one in FOR_OPERATORS] == [403] * len(FOR_OPERATORS)
