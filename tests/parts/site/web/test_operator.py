"""The operator's pages and endpoints: who may see them, what they do, and that every change is in the audit log."""

import re
from typing import Any

import msgspec
import pytest

from tests.cli.program import run_here
from tests.conftest import StartService
from tests.loopback import LoopbackUpstream
from tests.parts.site.web.operators import account_id_of, audit_events_of, balance_nano, make_operator
from tests.raw_client import RawClient
from tests.service import CREDIT_NANO, EMAIL, Service, wait_until
from tests.service_config import ordinary_spec
from tests.visitor import Visitor, signed_in

OF_MONEY = ("/ledger", "/months/2026-10")
PAGES = ("", "/requests", "/search", "/accounts", "/keys", "/classes", "/classes/forte", *OF_MONEY, "/audit-log")


@pytest.fixture
def other_page(service: Service, other: str) -> str:
    return f"/operator/accounts/{account_id_of(service, other)}"


def load_of(operator: Visitor) -> dict[str, Any]:
    found: dict[str, Any] = operator.api("GET", "/operator/load").json
    return found


def test_every_page_opens(operator: Visitor, other_page: str) -> None:
    """Every page has one heading and says which one it is."""
    for path in (*(f"/operator{path}" for path in PAGES), other_page):
        seen = operator.get(path)
        assert (seen.status, seen.text.count("<h1")) == (200, 1), path
        assert 'aria-current="page"' in seen.text


def test_accounts_are_found_by_a_part_of_the_address(operator: Visitor, other: str) -> None:
    """A part of the address, in any case, finds the account; wildcards of SQL mean nothing."""
    part = other.partition("@")[0][3:].upper()
    assert other in operator.get(f"/operator/accounts?search={part}").words
    found = operator.api("GET", f"/operator/accounts?search={part}").json
    assert [account["email"] for account in found["data"]] == [other]
    assert "No account found" in operator.get("/operator/accounts?search=%25_%25").words


def test_credit_is_added_and_taken_back(
    service: Service, operator: Visitor, email: str, other: str, other_page: str
) -> None:
    """A grant and a correction change the balance by entries, and both are in the audit log with who did it."""
    seen = operator.post(f"{other_page}/grants", {"amount": "2.50", "note": "for a trial"})
    assert (seen.status, seen.location) == (303, f"{other_page}?note=credit-added")
    reply = operator.api("POST", f"{other_page}/corrections", {"amount": "1.25", "reason": "sent twice"})
    assert (reply.status, reply.json["balance"]) == (200, "6.25")
    assert balance_nano(service, other) == CREDIT_NANO + 1_250_000_000
    assert audit_events_of(service, other) == [
        (email, "credit.grant", "2.50 dollars: for a trial"),
        (email, "credit.correct", "-1.25 dollars: sent twice"),
    ]
    service.ledger.check_rules()


def test_a_bank_transfer_is_recorded_and_refunded(
    service: Service, operator: Visitor, email: str, other: str, other_page: str
) -> None:
    """Once by its reference; its owner sees it among the payments, and only its own account can be asked for it."""
    invoice = f"INV {other}"  # the service has those of other tests
    paid = {"amount": "10.00", "reference": invoice, "note": "seats of May"}
    seen = operator.post(f"{other_page}/transfers", paid)
    assert (seen.status, seen.location) == (303, f"{other_page}?note=credit-added")
    seen = operator.post(f"{other_page}/transfers", paid)
    assert (seen.status, f"'{invoice}' was recorded at" in seen.words) == (400, True)
    back = {"transfer": invoice, "part": "4.00", "reason": "two seats less", "reference": "one form"}
    for _ in range(2):
        seen = operator.post(f"{other_page}/transfers/refund", back)
        assert (seen.status, seen.location) == (303, f"{other_page}?note=credit-taken-back")
    reply = operator.api("POST", f"{other_page}/transfers/refund", {"transfer": invoice, "reason": "the rest"})
    assert (reply.status, reply.json["balance"]) == (200, "5.00")
    own_page = f"/operator/accounts/{account_id_of(service, email)}"
    seen = operator.post(f"{own_page}/transfers/refund", back)
    assert (seen.status, "no bank transfer with this reference" in seen.words) == (400, True)
    assert [event for event in audit_events_of(service, other) if event[0] == email] == [
        (email, "payment.paid", "10.00 dollars"),
        (email, "payment.refund", "4.00 dollars"),
        (email, "payment.refund", "6.00 dollars"),
    ]
    owner = signed_in(service, other)
    assert f"bank transfer {invoice} refunded" in owner.get("/credit").words
    assert f"refund one form of bank transfer {invoice}: two seats less" in owner.get("/credit/statement").words
    [payment] = owner.api("GET", "/payments").json["data"]
    assert (payment["provider"], payment["reference"], payment["returned"]) == ("transfer", invoice, "10.00")
    service.ledger.check_rules()


def test_a_form_that_is_sent_twice_counts_once(
    service: Service, operator: Visitor, other: str, other_page: str
) -> None:
    """A double click, a form that is sent again and a repeated request with a reference move credit once."""
    first, second = re.findall('name="reference" value="([0-9a-f]{16})"', operator.get(other_page).text)
    for _ in range(2):
        seen = operator.post(f"{other_page}/grants", {"amount": "2.00", "reference": first})
        assert (seen.status, seen.location) == (303, f"{other_page}?note=credit-added")
        taken = {"amount": "1.00", "reason": "why", "reference": second}
        assert operator.post(f"{other_page}/corrections", taken).status == 303
        reply = operator.api("POST", f"{other_page}/grants", {"amount": "0.50", "reference": "invoice 17"})
        assert (reply.status, reply.json["balance"]) == (200, "6.50")
    seen = operator.post(f"{other_page}/grants", {"amount": "3.00", "reference": first})
    assert (seen.status, "was used before for something else" in seen.words) == (400, True)
    assert balance_nano(service, other) == CREDIT_NANO + 1_500_000_000
    assert len(audit_events_of(service, other)) == 3


@pytest.mark.parametrize(
    "amount", ["0", "-1", "", "abc", "NaN", "1e2", "1_0", "٥", "５", "0.0000000001", "9999999999999"]
)
def test_bad_amounts_are_refused(service: Service, operator: Visitor, other: str, other_page: str, amount: str) -> None:
    """An amount that is not exact, not positive or absurd changes nothing. The page says so, and keeps it."""
    for path, fields in (("grants", {"note": ""}), ("corrections", {"reason": "a reason"})):
        seen = operator.post(f"{other_page}/{path}", {"amount": amount, **fields})
        assert (seen.status, 'role="alert"' in seen.text) == (400, True)
        assert seen.text.count(f'name="amount" value="{amount}"') == (1 if amount else 3)  # in the form that was sent
        assert operator.api("POST", f"{other_page}/{path}", {"amount": amount, **fields}).status == 400
    assert (balance_nano(service, other), audit_events_of(service, other)) == (CREDIT_NANO, [])


def test_no_more_is_taken_back_than_there_is(service: Service, operator: Visitor, other: str, other_page: str) -> None:
    """A correction above the balance is refused with the number, and needs a reason."""
    seen = operator.post(f"{other_page}/corrections", {"amount": "5.01", "reason": "a reason"})
    assert "5.01 dollars cannot be taken" in seen.words
    assert "the balance is 5.00." in seen.words
    assert operator.post(f"{other_page}/corrections", {"amount": "1.00", "reason": " "}).status == 400
    assert (balance_nano(service, other), audit_events_of(service, other)) == (CREDIT_NANO, [])


def test_a_grant_may_expire(service: Service, operator: Visitor, email: str, other: str, other_page: str) -> None:
    """After so many days, which the audit log has; anything else is refused."""
    assert operator.post(f"{other_page}/grants", {"amount": "1.00", "expires_days": "90"}).status == 303
    for days in ("0", "-1", "soon", "٥", "99999"):
        assert operator.post(f"{other_page}/grants", {"amount": "1.00", "expires_days": days}).status == 400
    assert audit_events_of(service, other) == [(email, "credit.grant", "1.00 dollars for 90 days")]
    lots = service.ledger.query(
        "SELECT amount_nano, expires_at - created_at AS lasts_ms FROM credit_lots WHERE account_id = ? "
        "AND expires_at IS NOT NULL",
        other_page.rpartition("/")[2],
    )
    assert [(row["amount_nano"], row["lasts_ms"]) for row in lots] == [(1_000_000_000, 90 * 86_400_000)]


def test_a_suspended_account_is_signed_out(
    service: Service, operator: Visitor, email: str, other: str, other_page: str
) -> None:
    """Suspending ends the sessions of an account; resuming lets its owner sign in again."""
    owner = signed_in(service, other)
    assert operator.post(f"{other_page}/suspend").status == 303
    assert owner.get("/settings").status == 303
    assert "suspended" in operator.get(other_page).words
    assert operator.api("POST", f"{other_page}/resume").json["suspended_at"] is None
    owner.sign_in(other)
    assert audit_events_of(service, other) == [(email, "account.suspend", ""), (email, "account.resume", "")]


def test_an_erased_account_is_shown_and_cannot_be_changed(
    service: Service, operator: Visitor, other: str, other_page: str
) -> None:
    """The lists and its page say that it is erased, and the page offers no form."""
    assert run_here(service.folder, "account", "erase", other, "--yes").returncode == 0
    page = operator.get(other_page)
    assert "State erased since" in page.words
    assert other_page + "/" not in page.text
    assert "suspended" not in page.words
    assert operator.api("POST", f"{other_page}/resume").status == 400


def test_an_operator_is_made_and_unmade(
    service: Service, operator: Visitor, email: str, other: str, other_page: str
) -> None:
    """The role opens the pages to an account, protects it from being suspended, and can be taken away."""
    assert operator.post(f"{other_page}/role", {"is_operator": "true"}).status == 303
    second = signed_in(service, other)
    assert second.get("/operator").status == 200
    assert "Take the role away first" in operator.post(f"{other_page}/suspend").words
    operator.get(other_page)
    assert operator.post(f"{other_page}/role", {"is_operator": "false"}).status == 303
    assert second.get("/operator").status == 403
    assert audit_events_of(service, other) == [(email, "account.operator", ""), (email, "account.ordinary", "")]


def test_a_reset_link_is_shown_once(
    service: Service, operator: Visitor, email: str, other: str, other_page: str
) -> None:
    """The link is on the reply alone: neither the store, the audit log nor the next page has its secret."""
    seen = operator.post(f"{other_page}/reset-link")
    secret = seen.text.partition("/reset/")[2].partition("<")[0]
    assert len(secret) >= 43
    assert secret not in operator.get(other_page).text
    assert audit_events_of(service, other) == [(email, "link.reset", "")]
    assert secret.encode() not in service.store.read_bytes()


def test_a_key_is_found_and_revoked(
    service: Service, operator: Visitor, email: str, other: str, upstream: LoopbackUpstream
) -> None:
    """A key is found by its id, its prefix and itself, which is not shown again; revoked, it fails at once."""
    key = service.create_key(other)
    api = RawClient(service.port, key)
    assert api.chat().status == 200
    seen = operator.post("/operator/keys", {"text": key})
    assert other in seen.words
    assert key not in seen.text
    [found] = operator.api("POST", "/operator/keys/find", {"text": key[:12]}).json["data"]
    [again] = operator.api("POST", "/operator/keys/find", {"text": found["id"]}).json["data"]
    assert again | {"last_used_at": None} == found | {"last_used_at": None}  # it is written within a second
    assert (found["email"], found["state"]) == (other, "active")
    assert operator.post(f"/operator/keys/{found['id']}/revoke").location == "/operator/keys?note=key-revoked"
    assert api.chat().status == 401
    assert operator.api("POST", f"/operator/keys/{found['id']}/revoke").json["state"] == "revoked"
    assert audit_events_of(service, other) == [(email, "key.revoke", found["prefix"])]


def test_hostile_names_are_only_text(service: Service, operator: Visitor, other: str, other_page: str) -> None:
    """A note that looks like HTML is shown as it was typed."""
    operator.post(f"{other_page}/grants", {"amount": "1.00", "note": "<script>alert(1)</script>"})
    seen = operator.get(other_page)
    assert "<script>alert" not in seen.text
    assert "<script>alert(1)</script>" in seen.words or "&lt;script&gt;" in seen.text


@pytest.mark.usefixtures("far_from_midnight")
def test_the_overview_counts_what_was_used(operator: Visitor, service: Service, upstream: LoopbackUpstream) -> None:
    """A chat is in the usage of today and in the live load; the page shows the credit of all accounts."""
    before = operator.api("GET", "/operator/overview").json
    assert RawClient(service.port, service.key).chat(model="mezzo").status == 200
    after = operator.api("GET", "/operator/overview").json
    requests = [sum(one["requests"] for one in seen["today"]) for seen in (before, after)]
    assert requests[1] == requests[0] + 1
    wait_until(lambda: load_of(operator)["in_flight"] == 0, "the end of all requests")
    load = load_of(operator)
    assert (load["workers"], load["slots_limit"]) == (1, 10_000)
    assert [one["id"] for one in load["classes"]] == ["mezzo", "forte", "fortissimo"]
    assert [one["state"] for one in load["models"]] == ["usable"] * len(load["models"])
    assert "Credit outstanding" in operator.get("/operator").words


@pytest.mark.usefixtures("upstream")
def test_the_page_of_an_account_shows_its_usage(operator: Visitor, service: Service) -> None:
    """The account of a key that was used has a row for each class, on its page and at the endpoint."""
    assert RawClient(service.port, service.key).chat(model="mezzo").status == 200
    (account,) = operator.api("GET", f"/operator/accounts?search={EMAIL}").json["data"]
    used = operator.api("GET", f"/operator/accounts/{account['id']}").json["usage"]
    assert "mezzo" in [one["class_id"] for one in used]
    seen = operator.get(f"/operator/accounts/{account['id']}")
    assert (seen.status, "mezzo" in seen.words) == (200, True)


def test_the_ledger_is_checked_in_the_background(service: Service, operator: Visitor, email: str) -> None:
    """The button begins a check; its result appears on the page and in the audit log with who began it."""
    assert operator.post("/operator/ledger").location.startswith("/operator/ledger?note=check-")

    def result() -> list[str]:
        results = operator.api("GET", "/operator/ledger").json["results"]
        return [one["detail"] for one in results if one["actor"] == email]

    wait_until(lambda: bool(result()), "the result of the check")
    assert result()[0].startswith("no findings")
    assert "sound" in operator.get("/operator/ledger").words
    assert "ledger.check" in operator.get("/operator/audit-log").words


@pytest.fixture
def busy_account(operator: Visitor, other_page: str) -> int:
    """Has more events than a page shows."""
    for _ in range(51):
        assert operator.api("POST", f"{other_page}/grants", {"amount": "0.01"}).status == 200
    return 52  # with the grant of its opening credit


def test_the_audit_log_is_paged_and_filtered(operator: Visitor, other: str, busy_account: int) -> None:
    """The audit log of one account shows 50 events a page, newest first, and leads on to the older ones."""
    first = operator.api("GET", f"/operator/audit-log?account={other}").json
    second = operator.api("GET", f"/operator/audit-log?account={other}&before={first['next_before']}").json
    ids = [event["id"] for event in first["data"] + second["data"]]
    assert (len(first["data"]), len(ids), second["next_before"]) == (50, busy_account, None)
    assert ids == sorted(ids, reverse=True)
    assert "Older" in operator.get(f"/operator/audit-log?account={other}").words
    assert operator.get("/operator/audit-log?account=nobody@example.org").status == 400
    assert operator.api("GET", f"/operator/audit-log?before={2**70}").status == 400


@pytest.mark.slow(reason="starts several workers")
def test_the_load_is_that_of_all_workers(start_service: StartService, upstream: LoopbackUpstream) -> None:
    """With two workers the load is the sum of both, whichever of them is asked."""
    spec = msgspec.structs.replace(ordinary_spec(upstream.base_url), more_toml="[server]\nworkers = 2\n")
    service = start_service(spec)
    make_operator(service, EMAIL)
    operator = signed_in(service)
    wait_until(lambda: load_of(operator)["workers"] == 2, "both workers being shown")
    load = load_of(operator)
    assert load["slots_limit"] == 10_000
    assert load["models"][0]["ceiling"] >= 5_000
