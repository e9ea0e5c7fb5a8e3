"""The docs in a real browser: the console sends a request with a pasted key, and streams the reply."""

import pytest
from playwright.sync_api import expect

from tests.loopback import LoopbackUpstream
from tests.parts.site.browser.conftest import OpenPage, serious_findings, shoot
from tests.service import Service

pytestmark = pytest.mark.slow(reason="a browser uses the console of the docs")


def test_the_console_sends_a_request(open_page: OpenPage, service: Service, upstream: LoopbackUpstream) -> None:
    """A visitor pastes a key, sends the example, and sees status, headers and the stream to its end."""
    page = open_page()
    page.goto("/docs")
    page.get_by_label("Key", exact=True).fill(service.key)
    page.get_by_role("button", name="Send").click()
    reply = page.locator('[data-part="reply"]')
    reply.get_by_text("[DONE]").wait_for()
    expect(reply.get_by_role("heading")).to_contain_text("200")
    reply.get_by_text("Headers", exact=True).click()
    expect(reply.get_by_text("x-request-id", exact=True)).to_be_visible()
    assert service.key not in page.evaluate("JSON.stringify({...localStorage, ...sessionStorage}) + document.cookie")
    shoot(page, "docs")


def test_the_console_shows_an_error(open_page: OpenPage) -> None:
    """Without a key the reply is the error object, readable."""
    page = open_page()
    page.goto("/docs")
    page.get_by_label("Endpoint").select_option("listModels")
    expect(page.get_by_label("Body")).to_be_hidden()
    page.get_by_role("button", name="Send").click()
    page.locator('[data-part="reply"]').get_by_text('"authentication_error"').wait_for()


@pytest.mark.release(reason="axe-core takes seconds for a long page")
def test_the_docs_are_accessible(open_page: OpenPage) -> None:
    """axe has no serious finding on the reference of the API and of the platform."""
    page = open_page()
    for path in ("/docs", "/docs/platform/operator"):
        page.goto(path)
        assert serious_findings(page) == [], path
