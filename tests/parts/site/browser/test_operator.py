"""The operator's pages in a real browser: the live numbers move, and the pages are accessible."""

import pytest
from playwright.sync_api import expect

from tests.parts.site.browser.conftest import OpenPage, serious_findings, shoot, sign_in
from tests.parts.site.browser.looks import PHONE
from tests.parts.site.web.operators import make_operator
from tests.raw_client import RawClient
from tests.service import Service

PAGES = [
    "",
    "/requests",
    "/search",
    "/accounts",
    "/keys",
    "/vouchers",
    "/margins?by=account",
    "/bill",
    "/classes",
    "/classes/forte",
    "/ledger",
    "/months/2026-10",
    "/audit-log",
]
pytestmark = pytest.mark.slow(reason="a browser looks at the operator's pages")


@pytest.fixture
def operator(service: Service, email: str) -> str:
    """The same, once it is an operator's."""
    make_operator(service, email)
    return email


def test_the_live_numbers_move(open_page: OpenPage, service: Service, operator: str) -> None:
    """A request that is served while the overview is open is counted there without a reload."""
    page = open_page()
    sign_in(page, operator)
    page.goto("/operator")
    page.get_by_text("Live", exact=True).wait_for()
    before = page.locator('[data-live="requests"]').inner_text()
    assert RawClient(service.port, service.key).get("/v1/models").status == 200
    page.wait_for_function("before => document.querySelector('[data-live=requests]').innerText !== before", arg=before)
    shoot(page, "operator")


def test_a_request_appears_in_the_list(open_page: OpenPage, service: Service, operator: str) -> None:
    """Without a reload; its link opens what happened to it."""
    page = open_page()
    sign_in(page, operator)
    page.goto("/operator/requests")
    request_id = RawClient(service.port, service.key).chat(model="nope").headers["x-request-id"]
    page.locator(f'a[href="/operator/requests/{request_id}"]').click()
    expect(page.get_by_text("400: The request was invalid")).to_be_visible()
    shoot(page, "operator-request")


def test_a_class_is_rolled_back_by_its_button(open_page: OpenPage, service: Service, operator: str) -> None:
    """The button asks first. Then the version from before is served, and the history has the reason."""
    promotion = ["--candidate", "loopback/new", "--force", "--reason", "a trial"]
    assert service.cli("class", "adopt", "fortissimo").returncode == 0
    assert service.cli("class", "promote", "fortissimo", *promotion).returncode == 0
    page = open_page(viewport=PHONE, color_scheme="dark")
    sign_in(page, operator)
    page.goto("/operator/classes/fortissimo")
    shoot(page, "operator-class-promoted-phone")
    page.get_by_label("Reason").fill("too slow")
    page.once("dialog", lambda asked: asked.dismiss())
    page.get_by_role("button", name="Roll back").click()
    page.once("dialog", lambda asked: asked.accept())
    page.get_by_role("button", name="Roll back").click()
    expect(page.get_by_text("version 1 instead of 2: too slow")).to_be_visible()
    shoot(page, "operator-class-rolled-back-phone")
    assert service.cli("class", "adopt", "fortissimo", "--undo").returncode == 0


@pytest.mark.release(reason="axe-core takes seconds for a long page")
def test_the_pages_are_accessible(open_page: OpenPage, operator: str) -> None:
    """The operator's pages have no serious finding of axe."""
    page = open_page(viewport=PHONE)
    sign_in(page, operator)
    for path in PAGES:
        page.goto(f"/operator{path}")
        assert serious_findings(page) == [], path
        shoot(page, f"operator{path.replace('/', '-')}-phone")
