"""The first page in a real browser."""

from tests.browser.conftest import OpenPage, shoot


def test_the_first_page_opens(open_page: OpenPage) -> None:
    """The first page shows the name of the service and asks nobody else for anything."""
    page = open_page()
    page.goto("/")
    assert "Cadenza" in page.title()
    shoot(page, "home")
