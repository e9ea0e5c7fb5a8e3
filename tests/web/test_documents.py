"""The documents of an account as pages, PDF and JSON: its owner and operators see them, and nobody else."""

import contextlib
import sqlite3
from collections.abc import Iterator

import msgspec
import pypdfium2
import pytest

from tests.loopback import LoopbackUpstream
from tests.service import Service
from tests.service_config import classes_spec
from tests.stripe.local_stripe import SECRET_KEY, STRIPE_TOML, WEBHOOK_SECRET, make_event, send_event
from tests.visitor import Visitor
from tests.web.operators import account_id_of, audit_events_of, make_operator

BILLING = '[billing]\nseller = "Example Ltd"\nnumber_prefix = "EX-"\ntax_rate = "19"\ntax_label = "VAT"\n'
BUYER = {"name": "Zażółć 北京 <b>", "address": "ul. Długa 1\r\n\r\nWarszawa ", "tax_id": "PL1"}
UNKNOWN = ("EX-R-999999", "%00", "%F0%9F%8E%B5", "x" * 300)


@pytest.fixture(scope="module")
def service(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """A service that issues documents."""
    more = BILLING + STRIPE_TOML.format(url="http://127.0.0.1:9")
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("TEST_STRIPE_KEY", SECRET_KEY)
        variables.setenv("TEST_STRIPE_WEBHOOK", WEBHOOK_SECRET)
        with Service(msgspec.structs.replace(classes_spec(shared_upstream.base_url), more_toml=more)) as running:
            yield running


def add_payment(service: Service, email: str, state: str) -> str:
    """Add a payment of 10.00 dollars, and return the id of its account."""
    account_id = account_id_of(service, email)
    row = (f"pay_{account_id}", account_id, "stripe", f"cs_{account_id}", "pi_1", 10 * 10**9, 0, state, 1, 2)
    with contextlib.closing(sqlite3.connect(service.store, timeout=60)) as store, store:
        store.execute(f"INSERT INTO payments VALUES ({', '.join('?' * len(row))})", row)
    return account_id


def pay(service: Service, email: str) -> str:
    """Have a payment of 10.00 dollars, and return the number of its receipt."""
    account_id = add_payment(service, email, "paid")
    done = service.cli("documents", "issue")
    assert done.returncode == 0, done.stderr
    return str(service.ledger.query("SELECT number FROM documents WHERE account_id = ?", account_id)[0]["number"])


def test_an_owner_has_a_receipt(service: Service, visitor: Visitor, email: str) -> None:
    """With the buyer as it was entered before: on the page, as PDF and as JSON. A later name changes nothing in it."""
    seen = visitor.post("/credit/documents/buyer", BUYER)
    assert (seen.status, seen.location) == (303, "/credit/documents?note=saved")
    number = pay(service, email)
    assert visitor.api("PUT", "/documents/buyer", {"name": "Somebody else"}).status == 204
    assert [event for _, event, _ in audit_events_of(service, email)] == ["account.buyer"] * 2
    assert number in visitor.get("/credit/documents").words
    page = visitor.get(f"/credit/documents/{number}")
    for words in (f"Number {number}", "Example Ltd", "Zażółć 北京 <b>", "Tax id PL1", "VAT 19% 1.60", "Paid 10.00"):
        assert words in page.words, words
    [listed] = visitor.api("GET", "/documents").json["data"]
    assert (listed["number"], listed["amount"], listed["sha256"] in page.text) == (number, "10.00", True)
    facts = visitor.api("GET", f"/documents/{number}").json
    assert facts["buyer"] == {"name": "Zażółć 北京 <b>", "address": "ul. Długa 1\nWarszawa", "tax_id": "PL1"}
    pdf = visitor.get(f"/credit/documents/{number}/pdf")
    assert (pdf.status, pdf.headers["content-type"]) == (200, "application/pdf")
    assert pdf.body == visitor.get(f"/credit/documents/{number}/pdf").body
    with pypdfium2.PdfDocument(pdf.body) as document:
        assert number in document[0].get_textpage().get_text_range()


def test_an_event_of_the_provider_issues_documents(service: Service, visitor: Visitor, email: str) -> None:
    """The answer to the event of a payment comes after its receipt, that of a refund after the credit note."""
    account_id = add_payment(service, email, "open")
    paid = {"id": f"cs_{account_id}", "payment_intent": f"pi_{account_id}", "payment_status": "paid"}
    paid |= {"object": "checkout.session", "currency": "usd"}
    charge = {"payment_intent": f"pi_{account_id}", "amount_refunded": 300, "currency": "usd"}
    for kind, thing in (("checkout.session.completed", paid | {"amount_total": 1000}), ("charge.refunded", charge)):
        assert send_event(service.port, make_event(kind, thing)).text == "done\n"
    note, receipt = sorted(visitor.api("GET", "/documents").json["data"], key=lambda one: str(one["kind"]))
    assert (note["kind"], note["amount"], receipt["kind"], receipt["amount"]) == (
        "credit-note",
        "3.00",
        "receipt",
        "10.00",
    )
    assert f"Corrects {receipt['number']}" in visitor.get(f"/credit/documents/{note['number']}").words


def test_nobody_else_sees_it(service: Service, visitor: Visitor, stranger: Visitor) -> None:
    """The documents of others, and numbers that do not exist, are 404; without a session, the sign-in."""
    number = pay(service, service.create_account(0))
    for name in (number, *UNKNOWN):
        for path in (f"/credit/documents/{name}", f"/credit/documents/{name}/pdf"):
            assert visitor.get(path).status == 404
        assert visitor.api("GET", f"/documents/{name}").status == 404
    assert visitor.api("GET", "/documents").json["data"] == []
    assert stranger.get(f"/credit/documents/{number}").location == f"/sign-in?next=/credit/documents/{number}"
    assert visitor.get(f"/operator/documents/{number}").status == 403
    assert visitor.post("/credit/documents/buyer", {"name": "", "address": "x"}).status == 400


def test_an_operator_finds_it(service: Service, visitor: Visitor, email: str) -> None:
    """By its number or by the address of its account."""
    other = service.create_account(0)
    number = pay(service, other)
    make_operator(service, email)
    for search in ("", number.lower(), other):
        assert number in visitor.get(f"/operator/documents?search={search}").words
    [found] = visitor.api("GET", f"/operator/documents?search={other}").json["data"]
    assert (found["email"], found["document"]["number"]) == (other, number)
    assert f"Account {account_id_of(service, other)}" in visitor.get(f"/operator/documents/{number}").words
    assert visitor.get(f"/operator/documents/{number}/pdf").status == 200
    assert "No document found" in visitor.get("/operator/documents?search=nothing").words
    assert visitor.get("/operator/documents/EX-R-999999").status == 404
