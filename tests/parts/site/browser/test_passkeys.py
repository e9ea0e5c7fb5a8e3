"""Passkeys in a real browser, with Chromium's virtual authenticator, and the pages of signing in."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.parts.site.browser.conftest import TIMEOUT_MS, OpenPage, serious_findings, shoot, sign_in
from tests.parts.site.browser.looks import PHONE
from tests.parts.site.web.test_security import make_old
from tests.service import PASSWORD, Service

AUTHENTICATOR = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}
pytestmark = pytest.mark.slow(reason="a browser signs in by passkey")


@pytest.fixture
def page(chromium: Browser, service: Service) -> Iterator[Page]:
    """A page on `localhost`, because passkeys belong to host names, in a browser with an authenticator."""
    context = chromium.new_context(base_url=f"http://localhost:{service.port}")
    context.set_default_timeout(TIMEOUT_MS)
    opened = context.new_page()
    devtools = context.new_cdp_session(opened)
    devtools.send("WebAuthn.enable")
    devtools.send("WebAuthn.addVirtualAuthenticator", {"options": AUTHENTICATOR})
    yield opened
    context.close()


def test_a_passkey_is_added_and_signs_in(service: Service, page: Page, email: str) -> None:
    """A passkey gives recovery codes, signs in without a password, is a second factor, and can be removed."""
    sign_in_form(page, email)
    page.wait_for_url(lambda url: "/sign-in" not in url)
    page.goto("/settings/security")
    page.get_by_label("Name").fill("My laptop")
    page.get_by_role("button", name="Add a passkey").click()
    codes = page.locator("#new-codes")
    codes.wait_for()
    assert len(codes.inner_text().split()) == 10
    page.get_by_role("link", name="Done").click()
    page.get_by_text("My laptop").first.wait_for()
    shoot(page, "security-with-passkey")

    page.get_by_role("button", name="Sign out", exact=True).click()
    page.get_by_role("button", name="Sign in with a passkey").click()
    page.wait_for_url(lambda url: "/sign-in" not in url)

    page.goto("/settings")
    page.get_by_role("button", name="Sign out", exact=True).click()
    sign_in_half(page, email)
    shoot(page, "second-factor")
    page.get_by_role("button", name="Use your passkey").click()
    page.wait_for_url(lambda url: "/sign-in" not in url)

    page.goto("/settings/security")
    make_old(service, email)
    page.get_by_role("button", name="Remove My laptop").click()
    page.get_by_role("button", name="Use your passkey").click()
    page.get_by_text("The passkey is removed.").wait_for()
    page.get_by_role("button", name="Sign out", exact=True).click()
    page.get_by_role("button", name="Sign in with a passkey").click()
    page.get_by_text("The passkey was not accepted.").wait_for()


def test_data_is_downloaded_after_the_proof(open_page: OpenPage, service: Service, email: str) -> None:
    """The password is asked for, then the download begins, and the link that cancelled leads back."""
    page = open_page(viewport=PHONE)
    sign_in(page, email)
    make_old(service, email)
    page.goto("/settings/security")
    page.get_by_role("button", name="Download the archive").click()
    shoot(page, "confirm-phone")
    assert serious_findings(page) == []
    page.get_by_role("link", name="Cancel").click()
    page.wait_for_url("**/settings/security")
    page.get_by_role("button", name="Download the archive").click()
    page.get_by_label("Password").fill(PASSWORD)
    with page.expect_download() as download:
        page.get_by_role("button", name="Confirm").click()
    assert download.value.suggested_filename.endswith(".zip")
    page.get_by_role("link", name="Back").click()
    page.wait_for_url("**/settings/security")


def sign_in_half(page: Page, email: str) -> None:
    """Give the password, which is not enough."""
    sign_in_form(page, email)
    page.wait_for_url("**/sign-in/second-factor**")


def sign_in_form(page: Page, email: str) -> None:
    page.goto("/sign-in")
    page.get_by_label("E-mail").fill(email)
    page.get_by_label("Password", exact=True).fill("correct horse battery staple")
    page.get_by_role("button", name="Sign in", exact=True).click()


def test_a_passkey_answer_works_once_and_in_one_browser(page: Page, email: str) -> None:
    """What a browser sent to sign in is refused when it is sent again, and from another browser."""
    sign_in(page, email)
    page.goto("/settings/security")
    page.get_by_role("button", name="Add a passkey").click()
    page.locator("#new-codes").wait_for()
    page.get_by_role("link", name="Done").click()
    page.get_by_role("button", name="Sign out", exact=True).click()
    page.get_by_role("button", name="Sign in with a passkey").wait_for()
    statuses = page.evaluate(REPLAY)
    assert statuses == [200, 400]


REPLAY = """async () => {
  const send = (path, csrf, body) => fetch("/platform/api" + path, {
    method: "POST",
    headers: { "content-type": "application/json", "x-cadenza-csrf": csrf },
    body: body && JSON.stringify(body),
  });
  const csrf = document.body.dataset.csrf;
  const options = await (await send("/passkeys/ask", csrf)).json();
  const publicKey = PublicKeyCredential.parseRequestOptionsFromJSON(options);
  const credential = (await navigator.credentials.get({ publicKey })).toJSON();
  const first = await send("/sign-in/passkey", csrf, { credential });
  const again = await send("/sign-in/passkey", (await first.json()).csrf, { credential });
  return [first.status, again.status];
}"""


def test_the_pages_of_signing_in_look_right(open_page: OpenPage, email: str) -> None:
    """The pages open in both colour schemes and on a phone, without scripts that fail."""
    for name, options in (("light", {}), ("dark", {"color_scheme": "dark"}), ("phone", {"viewport": PHONE})):
        page = open_page(**options)
        page.goto("/sign-in")
        shoot(page, f"sign-in-{name}")
        sign_in(page, email)
        for path in ("settings", "settings/security"):
            page.goto(f"/{path}")
            shoot(page, f"{path.rpartition('/')[2]}-{name}")
        page.get_by_role("button", name="Add an authenticator app").click()
        page.get_by_label("Code that the app shows").wait_for()
        shoot(page, f"authenticator-{name}")
