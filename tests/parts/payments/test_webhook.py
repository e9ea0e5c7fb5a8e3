"""Payments by card against localstripe: checkouts, invoices, signed events and refunds."""

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.debian import CannotInstall
from tests.installed import INSTALL_S, give_up
from tests.loopback import LoopbackUpstream
from tests.parts.payments.local_stripe import (
    SECRET_KEY,
    STRIPE_TOML,
    WEBHOOK,
    WEBHOOK_SECRET,
    LocalStripe,
    make_event,
    running_stripe,
    send_event,
)
from tests.service import Service, refusing_address, wait_until
from tests.service_config import classes_spec
from tests.visitor import Visitor

TEN_NANO = 10 * 10**9
BALANCE = "SELECT balance_nano FROM accounts WHERE email = ?"

pytestmark = [
    pytest.mark.timeout(INSTALL_S + 300),
    pytest.mark.slow(reason="installs and runs other people's programs"),
]


@pytest.fixture(scope="module")
def stripe() -> Iterator[LocalStripe]:
    try:
        with running_stripe() as running:
            yield running
    except CannotInstall as reason:
        give_up(reason)


@pytest.fixture(scope="module")
def paid_service(stripe: LocalStripe, shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """A service that takes payments by card. localstripe sends its events there."""
    spec = msgspec.structs.replace(classes_spec(shared_upstream.base_url), more_toml=STRIPE_TOML.format(url=stripe.url))
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("TEST_STRIPE_KEY", SECRET_KEY)
        variables.setenv("TEST_STRIPE_WEBHOOK", WEBHOOK_SECRET)
        with Service(spec) as running:
            stripe.send_events_to(running.port)
            yield running
            running.ledger.check_rules()


class Payer:
    """An account without credit, in a browser."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.email = service.create_account(0)
        self.browser = Visitor(service.port)
        self.browser.sign_in(self.email)

    @property
    def balance_nano(self) -> int:
        return int(self.service.ledger.query(BALANCE, self.email)[0][0])

    def wait_for(self, balance_nano: int) -> None:
        wait_until(lambda: self.balance_nano == balance_nano, f"a balance of {balance_nano}")

    def start(self, amount: str = "10.00") -> str:
        """Begin a payment; the id of the checkout at Stripe."""
        seen = self.browser.api("POST", "/payments", {"amount": amount})
        assert seen.status == 200, seen.text
        found = self.service.ledger.query("SELECT checkout FROM payments WHERE id = ?", seen.json["id"])
        return str(found[0][0])

    @property
    def state(self) -> str:
        return str(self.browser.api("GET", "/payments").json["data"][0]["state"])

    def send(self, kind: str, thing: Any, event_id: str = "") -> str:
        """Send a signed event; what the service did with it."""
        seen = send_event(self.service.port, make_event(kind, thing, event_id))
        assert seen.status == 200, seen.text
        return seen.text.strip()


@pytest.fixture
def payer(paid_service: Service) -> Payer:
    return Payer(paid_service)


def paid(checkout: str, **changes: Any) -> dict[str, Any]:
    """A checkout session as Stripe sends it once it is paid."""
    session = {
        "id": checkout,
        "object": "checkout.session",
        "payment_intent": f"pi_{checkout}",
        "payment_status": "paid",
        "amount_total": 1000,
        "currency": "usd",
    }
    return session | changes


def test_a_payment_becomes_credit(payer: Payer, stripe: LocalStripe) -> None:
    """A checkout is for the amount, leads back to our page, and its event adds the credit."""
    seen = payer.browser.api("POST", "/payments", {"amount": "12.34"})
    assert seen.json["url"].startswith("https://checkout.stripe.example/")
    checkout = seen.json["url"].rpartition("/")[2]
    session = stripe.session(checkout)
    assert (session["amount_total"], session["currency"], session["customer_email"]) == (1234, "usd", payer.email)
    assert session["client_reference_id"] == seen.json["id"]
    assert session["success_url"] == f"http://127.0.0.1:{payer.service.port}/credit?note=paid"
    assert "not paid yet" in payer.browser.get("/credit").words
    stripe.pay(checkout)
    payer.wait_for(12_340_000_000)
    assert "Credit added: card payment" in payer.browser.get("/credit").words


def test_a_payment_links_to_its_invoice_at_stripe(payer: Payer, stripe: LocalStripe) -> None:
    """A checkout asks for invoice, address, tax id and tax; the page leads to the invoice, for the payer alone."""
    checkout = payer.start()
    session = stripe.session(checkout)
    assert [session[name]["enabled"] for name in ("invoice_creation", "automatic_tax", "tax_id_collection")] == [
        "true"
    ] * 3
    assert session["billing_address_collection"] == "required"
    [payment] = payer.browser.api("GET", "/payments").json["data"]
    path = f"/credit/payments/{payment['id']}/invoice"
    assert path not in payer.browser.get("/credit").text
    assert payer.browser.get(path).status == 404
    stripe.pay(checkout)
    payer.wait_for(TEN_NANO)
    assert path in payer.browser.get("/credit").text
    seen = payer.browser.get(path)
    url = f"https://invoice.stripe.example/i/{checkout}"
    assert (seen.status, seen.headers["location"]) == (303, url)
    assert payer.browser.api("GET", f"/payments/{payment['id']}/invoice").json["url"] == url
    assert Payer(payer.service).browser.get(path).status == 404


def test_a_payment_that_settles_later_becomes_credit_later(payer: Payer) -> None:
    """A checkout that is complete but not paid adds nothing; the event that it is paid does."""
    checkout = payer.start()
    assert payer.send("checkout.session.completed", paid(checkout, payment_status="unpaid")) == "ignored"
    assert payer.balance_nano == 0
    assert payer.send("checkout.session.async_payment_succeeded", paid(checkout)) == "done"
    assert payer.balance_nano == TEN_NANO


def test_refunds_are_taken_back(payer: Payer, stripe: LocalStripe) -> None:
    """A partial refund takes its part, and the rest the rest."""
    checkout = payer.start()
    stripe.pay(checkout)
    payer.wait_for(TEN_NANO)
    stripe.refund(checkout, 250)
    payer.wait_for(7_500_000_000)
    stripe.refund(checkout, 750)
    payer.wait_for(0)
    assert payer.state == "returned"


def test_events_that_come_before_the_payment_are_kept(payer: Payer) -> None:
    """A refund that fails and a dispute are answered and wait; the payment leaves the credit that they leave."""
    checkout = payer.start()
    of_intent = {"currency": "usd", "payment_intent": f"pi_{checkout}"}
    dispute = {"id": f"dp_{checkout}", "amount": 300, **of_intent}
    refund = {"id": f"re_{checkout}", "amount": 400, "status": "failed", **of_intent}
    assert payer.send("charge.dispute.closed", {**dispute, "status": "lost"}) == "waiting"
    assert payer.send("refund.failed", refund) == "waiting"
    assert payer.send("charge.dispute.created", {**dispute, "status": "needs_response"}) == "waiting"
    assert payer.send("charge.refunded", {"amount_refunded": 400, **of_intent}) == "waiting"
    assert payer.send("checkout.session.completed", paid(checkout)) == "done"
    assert payer.balance_nano == 7_000_000_000


def test_forged_and_old_events_are_refused(payer: Payer) -> None:
    """Without the secret, with an old time, with another body or without a signature an event is refused."""
    body = make_event("checkout.session.completed", paid(payer.start()))
    port = payer.service.port
    refused = [
        send_event(port, body, secret="whsec_guess"),
        send_event(port, body, age_s=301),
        send_event(port, body, age_s=-400),
        send_event(port, body, signature=f"t={int(time.time())},v1={'0' * 64}"),
        send_event(port, body, signature="nonsense"),
        Visitor(port).send("POST", WEBHOOK, body, {"accept": "*/*"}),
    ]
    assert {(seen.status, seen.json["error"]["type"]) for seen in refused} == {(400, "invalid_request_error")}
    assert payer.balance_nano == 0


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"id":1}', b"\xff", b"[" * 60_000])
def test_signed_nonsense_changes_nothing(payer: Payer, body: bytes) -> None:
    """A signed body that is no event is answered, so that it is not sent again."""
    assert send_event(payer.service.port, body).text == "ignored\n"


def test_unknown_and_foreign_events_are_ignored(payer: Payer) -> None:
    """Events about other things, and about checkouts that are not ours, are answered and ignored."""
    assert payer.send("customer.created", {"id": "cus_1"}) == "ignored"
    assert payer.send("checkout.session.completed", paid("cs_foreign")) == "unknown payment"
    assert payer.send("charge.refunded", {"amount_refunded": 1, "currency": "usd"}) == "unknown payment"


def test_a_huge_event_is_refused(payer: Payer) -> None:
    """A body above 64 KiB is refused before anything is computed."""
    assert send_event(payer.service.port, b" " * 70_000).status == 413


def test_payments_are_limited(payer: Payer) -> None:
    """An account that begins many payments is told to wait, and the provider is not asked."""
    statuses = [payer.browser.api("POST", "/payments", {"amount": "5"}).status for _ in range(10)]
    assert (statuses[:5], 429 in statuses) == ([200] * 5, True)


def test_payments_of_others_are_not_shown(payer: Payer, paid_service: Service) -> None:
    """An account sees its own payments only."""
    payer.start()
    other = Payer(paid_service)
    assert other.browser.api("GET", "/payments").json["data"] == []


def test_without_scripts_a_page_has_the_link(payer: Payer) -> None:
    """The form leads to a page with the link to the checkout; a bad amount is shown again with what is wrong."""
    seen = payer.browser.post("/credit/payment", {"amount": "20.00"})
    assert (seen.status, 'href="https://checkout.stripe.example/' in seen.text) == (200, True)
    again = payer.browser.post("/credit/payment", {"amount": "0.10"})
    assert (again.status, 'value="0.10"' in again.text) == (400, True)
    assert "from 1.00 to 1000.00 dollars" in again.words


def test_a_provider_that_fails_is_told_apart(shared_upstream: LoopbackUpstream) -> None:
    """If Stripe does not answer, the page says so with 502, nothing is stored, and the log has no secret."""
    with refusing_address() as url, pytest.MonkeyPatch.context() as variables:
        variables.setenv("TEST_STRIPE_KEY", SECRET_KEY)
        variables.setenv("TEST_STRIPE_WEBHOOK", WEBHOOK_SECRET)
        spec = msgspec.structs.replace(
            classes_spec(shared_upstream.base_url), more_toml=STRIPE_TOML.format(url=url.removesuffix("/v1"))
        )
        with Service(spec) as service:
            payer = Payer(service)
            seen = payer.browser.api("POST", "/payments", {"amount": "5"})
            assert (seen.status, seen.json["error"]["type"]) == (502, "api_error")
            assert service.ledger.query("SELECT * FROM payments") == []
            wait_until(lambda: "a checkout could not be opened" in service.output, "the line in the log")
            assert SECRET_KEY not in service.output
