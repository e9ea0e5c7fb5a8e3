"""The operator's page of one request: how its charge comes about, and its refund."""

from urllib.parse import quote

import pytest

from tests.account import Account
from tests.parts.site.web.operators import account_id_of, audit_events_of
from tests.raw_client import MESSAGES
from tests.service import CREDIT_NANO, Service, wait_until
from tests.visitor import Visitor, signed_in

pytestmark = pytest.mark.usefixtures("sound_ledger")
UNKNOWN = ("chatcmpl-unknown", "%00", "%F0%9F%8E%B5")


@pytest.fixture
def account(service: Service) -> Account:
    """An account of somebody else, with one request."""
    account = Account(service, CREDIT_NANO)
    assert account.api.chat().status == 200
    return account


def page_of(account: Account) -> str:
    return f"/operator/requests/{account.charge()['completion_id']}"


def test_a_charge_explains_itself(service: Service, operator: Visitor, account: Account) -> None:
    """The page has tokens and prices, class and version, provider, model, key and ids; the account leads to it."""
    page, charge = page_of(account), account.charge()
    assert page in operator.get(f"/operator/accounts/{account_id_of(service, account.email)}").text
    words = operator.get(page).words
    found = operator.api("GET", page).json
    prompt, cached, completion = (found[f"{name}_tokens"] for name in ("prompt", "cached", "completion"))
    counted = {"in": (prompt - cached, 1070), "in, cached": (cached, 1070), "out": (completion, 3450)}
    for kind, (tokens, price_nano) in counted.items():
        assert f"{kind} {tokens} {price_nano:,} {tokens * price_nano:,}" in words
    assert (found["input_price"], found["output_price"]) == ("0.00000107", "0.00000345")
    assert found["cached_input_price"] is None
    assert prompt * 1070 + completion * 3450 == -charge["amount_nano"]
    for name in ("email", "provider", "model", "key_id", "request_id", "completion_id"):
        assert found[name]
        assert found[name] in words
    assert f"forte, version {found['version']}" in words
    assert found["charged"] == found["granted"]


def test_a_refused_request_has_a_page(operator: Visitor, account: Account, service: Service) -> None:
    """The list shows it with its cause, the search finds it by its request id, and its page says what to do."""
    refused = account.api.chat(model="nope").headers["x-request-id"]
    row = "SELECT 1 FROM request_details WHERE request_id = ?"
    wait_until(lambda: bool(service.ledger.query(row, refused)), "its details in the store")
    listed = operator.get(f"/operator/requests?account={account.email}")
    assert f'href="/operator/requests/{refused}"' in listed.text
    assert page_of(account) in listed.text
    [found] = operator.api("GET", f"/operator/requests?status=4xx&account={account.email}").json["data"]
    assert (found["request_id"], found["status"], found["cause"]) == (refused, 400, "invalid")
    searched = operator.post("/operator/search", {"text": refused})
    assert searched.location == f"/operator/requests/{refused}"
    words = operator.get(f"/operator/requests/{refused}").words
    assert "400: The request was invalid" in words
    assert "This request cost nothing." in words
    for query, said in (("status=6xx", "is not a status"), ("account=nobody@example.org", "There is no account")):
        wrong = operator.get(f"/operator/requests?{query}")
        assert (wrong.status, said in wrong.words, "Took at least" in wrong.words) == (400, True, True)


def test_a_request_id_leads_nowhere_else(operator: Visitor, account: Account, service: Service) -> None:
    """Clients choose request ids. One that looks like a path has a page of its own, by list and by search."""
    chosen = f"../../settings/{account.email}"
    assert account.api.post({"model": "nope"}, {"x-request-id": chosen}).status == 400
    row = "SELECT 1 FROM request_details WHERE request_id = ?"
    wait_until(lambda: bool(service.ledger.query(row, chosen)), "its details in the store")
    page = f"/operator/requests/{quote(chosen, safe='')}"
    assert f'href="{page}"' in operator.get(f"/operator/requests?account={account.email}").text
    assert chosen in operator.get(page).words
    assert operator.get(page.replace("%", "%25")).status == 404  # paths are decoded once


def test_a_refund_needs_the_completion_id(operator: Visitor, account: Account) -> None:
    """By its request id a request is found and not refunded: its client may have used it again for another one."""
    assert account.api.post({"messages": MESSAGES}, {"x-request-id": "chosen"}).status == 200
    before_nano = account.balance_nano
    assert operator.get("/operator/requests/chosen").status == 200
    for refund in (operator.post, lambda *given: operator.api("POST", *given)):
        assert refund("/operator/requests/chosen/refund", {"reason": "an outage"}).status == 400
    assert account.balance_nano == before_nano


def test_a_request_is_refunded(operator: Visitor, email: str, account: Account, service: Service) -> None:
    """By the form in part, with a reason; then neither form nor endpoint refund it again. The owner sees it."""
    page, before_nano = page_of(account), account.balance_nano
    seen = operator.post(f"{page}/refund", {"part": "0.00000001", "reason": "a bad answer"})
    assert (seen.status, seen.location) == (303, f"{page}?note=refunded")
    assert account.balance_nano == before_nano + 10
    assert "Refunded $0.00000001" in operator.get(page).words
    assert f"{page}/refund" not in operator.get(page).text
    again = operator.post(f"{page}/refund", {"part": "", "reason": "again"})
    assert (again.status, "was refunded before" in again.words) == (400, True)
    assert operator.api("POST", f"{page}/refund", {"reason": "again"}).status == 400
    [(actor, event, detail)] = audit_events_of(service, account.email)
    assert (actor, event) == (email, "credit.refund")
    assert detail.startswith("0.00000001 of ")
    owner = signed_in(service, account.email)
    words = owner.get("/credit/statement").words
    assert "Refund of a request: a bad answer +$0.00000001" in words
    assert "<$0.0001 refunded" in words


def test_a_whole_request_is_refunded_by_the_endpoint(operator: Visitor, account: Account) -> None:
    """Without a part it is all that the request cost."""
    found = operator.api("POST", f"{page_of(account)}/refund", {"reason": "an outage"})
    assert (found.status, found.json["refunded"]) == (200, found.json["charged"].removeprefix("-"))
    assert account.balance_nano == CREDIT_NANO


@pytest.mark.parametrize("part", ["0", "-1", "abc", "1e2", "9.99"])
def test_bad_parts_are_refused(operator: Visitor, account: Account, part: str) -> None:
    """The page says what is wrong, and keeps what was typed."""
    before_nano = account.balance_nano
    seen = operator.post(f"{page_of(account)}/refund", {"part": part, "reason": "a bad answer"})
    assert (seen.status, 'role="alert"' in seen.text, 'value="a bad answer"' in seen.text) == (400, True, True)
    assert account.balance_nano == before_nano


def test_unknown_requests_are_not_found(operator: Visitor) -> None:
    """Page, form and endpoints are 404, and the page says why it may be missing."""
    assert "It may still run" in operator.get(f"/operator/requests/{UNKNOWN[0]}").words
    for name in UNKNOWN:
        assert operator.get(f"/operator/requests/{name}").status == 404
        assert operator.api("GET", f"/operator/requests/{name}").status == 404
        assert operator.post(f"/operator/requests/{name}/refund", {"reason": "why"}).status == 404
        assert operator.api("POST", f"/operator/requests/{name}/refund", {"reason": "why"}).status == 404
