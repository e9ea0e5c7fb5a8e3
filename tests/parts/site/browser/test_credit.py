"""The page of credit in a real browser: a voucher, a payment, and how it looks."""

from collections.abc import Iterator

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.account import Account
from tests.debian import CannotInstall
from tests.installed import INSTALL_S, give_up
from tests.loopback import LoopbackUpstream
from tests.parts.payments.local_stripe import SECRET_KEY, STRIPE_TOML, WEBHOOK_SECRET, running_stripe
from tests.parts.site.browser.conftest import TIMEOUT_MS, OpenPage, shoot, sign_in
from tests.parts.site.browser.looks import PHONE
from tests.service import CREDIT_NANO, Service
from tests.service_config import classes_spec

pytestmark = [pytest.mark.timeout(INSTALL_S + 300), pytest.mark.slow(reason="a browser adds credit")]


@pytest.fixture(scope="module")
def paid_service(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    try:
        with running_stripe() as stripe, pytest.MonkeyPatch.context() as variables:
            variables.setenv("TEST_STRIPE_KEY", SECRET_KEY)
            variables.setenv("TEST_STRIPE_WEBHOOK", WEBHOOK_SECRET)
            toml = STRIPE_TOML.format(url=stripe.url)
            with Service(msgspec.structs.replace(classes_spec(shared_upstream.base_url), more_toml=toml)) as running:
                stripe.send_events_to(running.port)
                yield running
    except CannotInstall as reason:
        give_up(reason)


def test_a_voucher_is_redeemed(open_page: OpenPage, service: Service) -> None:
    """With the keyboard alone: a wrong code is explained, and the right one adds its credit."""
    account = Account(service, CREDIT_NANO // 100)
    code = service.cli("voucher", "create", "12.50").stdout.strip()
    account.api.chat()
    page = open_page(color_scheme="dark", viewport=PHONE)
    sign_in(page, account.email)
    page.goto("/credit")
    expect(page.get_by_role("status")).to_contain_text("Your credit is low")
    page.get_by_label("Code").fill("CDZ-1234")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert").filter(visible=True)).to_contain_text("This is not a code")
    shoot(page, "credit-phone-dark-error")
    page.get_by_label("Code").fill(code.lower())
    page.keyboard.press("Enter")
    expect(page.get_by_text("The credit of the voucher is on your account.")).to_be_visible()
    expect(page.get_by_role("cell", name="Credit added: voucher")).to_be_visible()
    shoot(page, "credit-phone-dark")
    page.get_by_role("link", name="All entries").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Statement")
    shoot(page, "statement-phone-dark")


def test_a_payment_leads_to_the_checkout(chromium: Browser, paid_service: Service) -> None:
    """The script opens a checkout and goes there; an amount that is too small is explained on the page."""
    account = Account(paid_service, CREDIT_NANO)
    account.api.chat()
    context = chromium.new_context(base_url=f"http://127.0.0.1:{paid_service.port}")
    context.set_default_timeout(TIMEOUT_MS)
    context.route("https://checkout.stripe.example/**", lambda route: route.fulfill(body="the page of Stripe"))
    page: Page = context.new_page()
    sign_in(page, account.email)
    page.goto("/credit")
    page.get_by_label("Amount in dollars").fill("0.10")
    page.get_by_role("button", name="Continue to payment").click()
    expect(page.get_by_role("alert").filter(visible=True)).to_contain_text("from 1.00 to 1000.00 dollars")
    page.get_by_label("Amount in dollars").fill("15")
    shoot(page, "credit")
    page.get_by_role("button", name="Continue to payment").click()
    page.wait_for_url("https://checkout.stripe.example/**")
    expect(page.get_by_text("the page of Stripe")).to_be_visible()
    page.goto("/credit?note=paid")
    expect(page.get_by_role("cell", name="not paid yet")).to_be_visible()
    context.close()
