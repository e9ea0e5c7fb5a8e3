"""The pages and endpoints of credit: vouchers, the statement and its export, and the notice of a low balance."""

import csv
import http.client
import io
import itertools
import json
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime

import pytest

from tests.account import Account, run_command
from tests.loopback import LoopbackUpstream
from tests.parts.site.web.chat_client import ChatClient
from tests.parts.site.web.operators import change_store
from tests.service import CREDIT_NANO, Service, wait_until
from tests.visitor import TIMEOUT_S, Seen, Visitor, signed_in

pytestmark = pytest.mark.usefixtures("sound_ledger")
ENTRY = """
    INSERT INTO entries (account_id, kind, amount_nano, note, created_at, granted_nano, origin)
    SELECT id, 'grant', ?, ?, 1800000000000, 0, 'payment' FROM accounts WHERE email = ?"""
RAISE = "UPDATE accounts SET balance_nano = balance_nano + ? WHERE email = ?"


def make_voucher(service: Service, amount: str = "5.00", *options: str) -> str:
    return run_command(service, "voucher", "create", amount, *options).strip()


def guess() -> str:
    """A code that no voucher has."""
    return f"CDZ-{secrets.token_hex(10)}"


def add_grants(service: Service, email: str, notes: list[str]) -> None:
    """Grants of a nano-dollar each."""
    change_store(service, ENTRY, *((1, note, email) for note in notes))
    change_store(service, RAISE, (len(notes), email))


@pytest.fixture
def account(service: Service) -> Account:
    return Account(service, CREDIT_NANO)


@pytest.fixture
def owner(service: Service, account: Account) -> Visitor:
    """Signed in to the account."""
    return signed_in(service, account.email)


def test_credit_is_shown(visitor: Visitor) -> None:
    """The page and the endpoint show the balance, what is held, the pace and the newest entries."""
    words = visitor.get("/credit").words
    assert "Balance $5.00" in words
    assert "$5.00 of it is granted credit, which is spent first." in words
    assert "In use right now $0.00" in words
    assert "Nothing was spent in the last week." in words
    assert "Credit added: for a test +$5.00 $5.00" in words
    assert visitor.api("GET", "/credit").json == {
        "object": "credit",
        "balance": "5.00",
        "paid": "0.00",
        "granted": "5.00",
        "held": "0.00",
        "free": "5.00",
        "debt": "0.00",
        "per_day": "0.00",
        "lasts_until": None,
        "low_balance": "1.00",
        "is_low": False,
        "expiring": [],
        "currency": "USD",
    }


def test_a_request_is_in_the_statement(owner: Visitor, account: Account) -> None:
    """A request is an entry with its class and tokens, and sets the pace."""
    assert account.api.chat().status == 200
    newest = owner.api("GET", "/statement").json["data"][0]
    assert (newest["kind"], newest["model"]) == ("charge", "forte")
    assert newest["description"] == f"Request to forte, {newest['prompt_tokens'] + newest['completion_tokens']} tokens"
    assert owner.api("GET", "/credit").json["per_day"] != "0.00"
    assert "As in the last week." in owner.get("/credit").words


def test_a_voucher_is_redeemed_by_the_form(service: Service, visitor: Visitor) -> None:
    """The form adds the credit, leads back to the page, and the next request sees it."""
    seen = visitor.post("/credit/voucher", {"code": make_voucher(service, "2.50").lower()})
    assert (seen.status, seen.location) == (303, "/credit?note=redeemed")
    words = visitor.get(seen.location).words
    assert "The credit of the voucher is on your account." in words
    assert "Balance $7.50" in words


def test_a_voucher_pays_the_next_request(service: Service) -> None:
    """An account without credit gets 402, redeems a voucher, and gets an answer."""
    account = Account(service, 0)
    browser = signed_in(service, account.email)
    assert account.api.chat().status == 402
    seen = browser.api("POST", "/vouchers/redeem", {"code": make_voucher(service)})
    assert seen.json == {"object": "voucher", "amount": "5.00", "balance": "5.00", "currency": "USD"}
    assert account.api.chat().status == 200


def test_a_voucher_used_at_the_same_instant_counts_once(service: Service) -> None:
    """Of eight browsers of four accounts that redeem one voucher at once, one gets its credit."""
    code = make_voucher(service)
    emails = [service.create_account(0) for _ in range(4)]
    browsers = [Visitor(service.port) for _ in range(8)]
    for number, browser in enumerate(browsers):
        browser.sign_in(emails[number % 4])
    with ThreadPoolExecutor(8) as threads:
        seen = list(threads.map(lambda one: one.api("POST", "/vouchers/redeem", {"code": code}), browsers))
    assert sorted(one.status for one in seen) == [200] + [400] * 7


def test_a_wrong_code_is_shown_again(service: Service, visitor: Visitor) -> None:
    """An error is an alert beside the form, which keeps what was typed, escaped."""
    seen = visitor.post("/credit/voucher", {"code": '"><script>alert(1)</script>'})
    assert (seen.status, 'role="alert"' in seen.text, "<script>alert" in seen.text) == (400, True, False)
    assert "This is not a code" in seen.words
    used = make_voucher(service)
    visitor.post("/credit/voucher", {"code": used})
    assert "You have redeemed this voucher already" in visitor.post("/credit/voucher", {"code": used}).words


def test_guesses_are_limited_for_an_account(visitor: Visitor, service: Service) -> None:
    """After ten codes that do not exist an account must wait; a right code before that did not count."""
    headers = {"x-forwarded-for": "192.0.2.77"}

    def redeem(code: str) -> Seen:
        return visitor.api("POST", "/vouchers/redeem", {"code": code}, headers)

    for _ in range(3):
        assert redeem(make_voucher(service, "0.01")).status == 200
    tries = list(itertools.takewhile(lambda seen: seen.status != 429, (redeem(guess()) for _ in range(30))))
    assert 10 <= len(tries) < 30
    assert {seen.status for seen in tries} == {400}
    seen = redeem(make_voucher(service))
    assert (seen.status, int(seen.headers["retry-after"]) > 0) == (429, True)


def test_guesses_are_limited_for_a_network(service: Service) -> None:
    """A network that guesses with many accounts must wait too."""
    headers = {"x-forwarded-for": "2001:db8:0:9::1"}
    browsers = [Visitor(service.port) for _ in range(8)]
    for browser in browsers:
        browser.sign_in(service.create_account(0))
    statuses = [
        browser.api("POST", "/vouchers/redeem", {"code": guess()}, headers).status
        for _ in range(9)
        for browser in browsers
    ]
    assert statuses[:30] == [400] * 30
    assert 429 in statuses


def test_every_page_of_the_statement_follows_the_last(service: Service, visitor: Visitor, email: str) -> None:
    """By pages, newest first, every entry comes once and the balances fit."""
    add_grants(service, email, [f"number {number}" for number in range(120)])
    found, cursor = [], ""
    while True:
        page = visitor.api("GET", f"/statement?cursor={cursor}").json
        found += page["data"]
        if page["next"] is None:
            break
        cursor = page["next"]
    assert [entry["note"] for entry in found] == [*(f"number {n}" for n in range(119, -1, -1)), "for a test"]
    assert (found[0]["balance"], found[-1]["balance"]) == ("5.00000012", "5.00")
    older = visitor.get("/credit/statement").text
    assert 'rel="next"' in older
    assert "number 119" in older
    assert "number 69" not in older


@pytest.mark.parametrize("cursor", ["x", "1.x", "-1.-1", "1" * 50, "%00", "1.1%27"])
def test_a_bad_cursor_is_a_bad_request(visitor: Visitor, cursor: str) -> None:
    """A cursor that no page made is a 400."""
    assert visitor.get(f"/credit/statement?cursor={cursor}").status == 400
    assert visitor.api("GET", f"/statement?cursor={cursor}").status == 400


def test_the_statement_of_others_is_not_shown(service: Service, visitor: Visitor) -> None:
    """The cursor of another account shows the visitor's own entries only."""
    other = service.create_account(CREDIT_NANO)
    add_grants(service, other, ["a secret note"] * 60)
    cursor = signed_in(service, other).api("GET", "/statement").json["next"]
    assert "a secret note" not in visitor.get(f"/credit/statement?cursor={cursor}").text
    assert "a secret note" not in visitor.api("GET", f"/statement?cursor={cursor}").text


def test_the_export_has_every_entry(service: Service, visitor: Visitor, email: str) -> None:
    """CSV and JSON have all entries, oldest first; cells that a spreadsheet would run are escaped."""
    notes = ["=HYPERLINK(1)", "+1+1", "@x", "-2", 'a "quote", and a comma', *(f"n{number}" for number in range(1500))]
    add_grants(service, email, notes)
    seen = visitor.get("/credit/statement.csv")
    assert seen.headers["content-type"] == "text/csv; charset=utf-8"
    assert seen.headers["content-disposition"] == 'attachment; filename="cadenza-statement.csv"'
    rows = list(csv.DictReader(io.StringIO(seen.text)))
    assert [row["note"] for row in rows[1:6]] == ["'=HYPERLINK(1)", "'+1+1", "'@x", "-2", 'a "quote", and a comma']
    exported = visitor.get("/credit/statement.json").json
    assert exported["object"] == "list"
    assert [entry["note"] for entry in exported["data"]] == ["for a test", *notes]
    assert [row["balance"] for row in rows] == [entry["balance"] for entry in exported["data"]]
    assert rows[-1]["balance"] == "5.000001505"


def test_a_connection_can_be_used_after_an_export(visitor: Visitor) -> None:
    """On one connection, exports and requests for their headers alone are followed by the next reply."""
    cookie = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
    connection = http.client.HTTPConnection("127.0.0.1", visitor.port, timeout=TIMEOUT_S)
    with closing(connection):
        for method, path in (("GET", "csv"), ("HEAD", "csv"), ("GET", "json"), ("HEAD", "json"), ("GET", "csv")):
            connection.request(method, f"/credit/statement.{path}", headers={"cookie": cookie})
            response = connection.getresponse()
            assert (response.status, bool(response.read())) == (200, method == "GET")


def test_an_account_without_entries_has_an_empty_export(service: Service) -> None:
    """Without entries there is a heading, an empty list, and a page that says so."""
    browser = signed_in(service, service.create_account(0))
    assert browser.get("/credit/statement.csv").text.startswith("id,created_at,kind,")
    assert browser.get("/credit/statement.json").json == {"object": "list", "data": []}
    assert "No entries yet" in browser.get("/credit").words
    assert "No entries here" in browser.get("/credit/statement").words


def test_exports_are_limited(visitor: Visitor) -> None:
    """An account that exports again and again must wait."""
    statuses = [visitor.get("/credit/statement.csv").status for _ in range(16)]
    assert (statuses[:6], 429 in statuses) == ([200] * 6, True)


def test_a_low_balance_is_on_every_page(visitor: Visitor, upstream: LoopbackUpstream, service: Service) -> None:
    """The owner chooses the amount; below it every page has a line, but not for a new account, and at zero none has."""
    assert visitor.post("/credit/notice", {"amount": "7.25"}).location == "/credit?note=saved"
    assert "Your credit is low" not in visitor.get("/settings").words
    assert "You have no credit." in signed_in(service, service.create_account(0)).get("/settings").words
    assert ChatClient(visitor).send().is_done
    wait_until(lambda: "Your credit is low: $4.99" in visitor.get("/settings").words, "the notice")
    assert visitor.api("GET", "/credit").json["is_low"] is True
    assert visitor.api("PUT", "/credit/notice", {"amount": "0"}).status == 204
    assert "Your credit is low" not in visitor.get("/settings").words


@pytest.mark.parametrize("amount", ["-1", "NaN", "1e30", "0.0000000000001", "x", "", "9" * 5000])
def test_an_absurd_notice_is_refused(visitor: Visitor, amount: str) -> None:
    """An amount that is no amount of dollars changes nothing."""
    seen = visitor.post("/credit/notice", {"amount": amount})
    assert (seen.status, 'role="alert"' in seen.text) == (400, True)
    assert visitor.api("GET", "/credit").json["low_balance"] == "1.00"


def test_without_a_payment_provider_the_page_says_so(visitor: Visitor) -> None:
    """The page says how credit is added here; the endpoints of payments do not exist."""
    words = visitor.get("/credit").words
    assert "This service takes no payments by card." in words
    assert "Pay by card" not in words
    assert visitor.api("POST", "/payments", {"amount": "5"}).status == 404
    assert visitor.send("POST", "/platform/webhooks/stripe", b"{}", {}).status == 404


def test_a_correction_is_seen_by_the_owner(service: Service, visitor: Visitor, email: str) -> None:
    """The operator takes credit back with a reason, which is in the statement."""
    run_command(service, "account", "correct", email, "-1.25", "--reason", "granted <b>twice</b>")
    seen = visitor.get("/credit")
    assert "Correction: granted <b>twice</b> −$1.25 $3.75" in seen.words
    assert "<b>twice" not in seen.text
    entry = json.loads(visitor.api("GET", "/statement").text)["data"][0]
    assert (entry["kind"], entry["amount"], entry["balance"]) == ("correction", "-1.25", "3.75")


def test_a_statement_of_any_span(owner: Visitor, service: Service, account: Account) -> None:
    """This month, last month or dates: entries, opening and closing balance, and files of the same span."""
    add_grants(service, account.email, ["in January"])  # 2027-01-15
    seen = owner.get("/credit/statement?from=2027-01-01&to=2027-01-31")
    words = seen.words
    assert "$5.000000001" in seen.text
    assert "Opening balance $5.00 before 2027-01-01" in words
    assert "Closing balance $5.00 at the end of 2027-01-31" in words
    assert ("in January" in words, "for a test" in words) == (True, False)
    assert "Days and months begin at midnight UTC." in words
    found = owner.api("GET", "/statement?month=2027-01").json["data"]
    assert [(one["note"], one["balance"]) for one in found] == [("in January", "5.000000001")]
    file = owner.get("/credit/statement.csv?month=2027-01")
    assert "cadenza-statement-2027-01-01-to-2027-01-31.csv" in file.headers["content-disposition"]
    assert [row["note"] for row in csv.DictReader(io.StringIO(file.text))] == ["in January"]
    for name in ("month", "last-month"):
        assert "Opening balance" in owner.get(f"/credit/statement?range={name}").words
    assert "in January" in owner.get("/credit/statement").words


@pytest.mark.parametrize("query", ["month=2027-13", "from=soon", "from=2027-02-01&to=2027-01-01", "month=2027-01&to=1"])
def test_bad_spans_are_refused(owner: Visitor, query: str) -> None:
    """Page, file and endpoint say what is wrong."""
    for path in ("/credit/statement", "/credit/statement.csv"):
        assert owner.get(f"{path}?{query}").status == 400
    seen = owner.api("GET", f"/statement?{query}")
    assert (seen.status, seen.json["error"]["message"].partition(":")[0]) == (400, query.partition("=")[0])


def test_owners_see_what_expires_and_when(owner: Visitor, service: Service) -> None:
    """The credit of a voucher that lasts 30 days, on the page and by the endpoint."""
    code = make_voucher(service, "2.00", "--credit-expires", "30")
    assert owner.post("/credit/voucher", {"code": code}).status == 303
    [found] = owner.api("GET", "/credit").json["expiring"]
    assert (found["amount"], found["note"]) == ("2.00", f"voucher {code[:8]}")
    date = datetime.fromisoformat(found["expires_at"])
    assert 29 <= (date - datetime.now(UTC)).days <= 30
    assert f"$2.00 expires on {date.day} {date:%b %Y} (UTC)." in owner.get("/credit").words
