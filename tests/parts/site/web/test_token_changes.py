"""Every route that changes something, called with an access token: the audit log names the token."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from cadenza.parts.site.routes import ApiEndpoint
from cadenza.parts.site.site_map import SITE
from cadenza.parts.site.tokens import SCOPES
from tests.account import Account
from tests.loopback import LoopbackUpstream
from tests.parts.payments.local_stripe import SECRET_KEY, STRIPE_TOML, WEBHOOK_SECRET
from tests.parts.site.web.operators import account_id_of, make_operator
from tests.parts.site.web.test_credit import make_voucher
from tests.parts.site.web.test_operator_classes import change, promote
from tests.parts.site.web.test_tokens import ask, create_token
from tests.service import CREDIT_NANO, Service, wait_until
from tests.service_config import RouteSpec, ServiceSpec

CHECKOUT = json.dumps({"id": "cs_1", "object": "checkout.session", "url": "https://pay.example.org/cs_1"}).encode()
CHANGES = {
    f"{one.method} {one.path}"
    for one in SITE.routes
    if isinstance(one, ApiEndpoint) and one.method != "GET" and one.scope and one.scope.endswith(":write")
}
EVENTS = "SELECT actor, token, event FROM audit_events WHERE id > ? ORDER BY id"
NEWEST = "SELECT coalesce(max(id), 0) FROM audit_events"


class Checkouts(BaseHTTPRequestHandler):
    """A payment provider that opens every checkout."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", str(len(CHECKOUT)))
        self.end_headers()
        self.wfile.write(CHECKOUT)

    def log_message(self, *_args: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def provider_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Checkouts) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def service(shared_upstream: LoopbackUpstream, provider_url: str) -> Iterator[Service]:
    """A service that takes payments, with an adopted class at version 2."""
    more = STRIPE_TOML.format(url=provider_url)
    routes = {"forte": [RouteSpec("acme", "one")]}
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("TEST_STRIPE_KEY", SECRET_KEY)
        variables.setenv("TEST_STRIPE_WEBHOOK", WEBHOOK_SECRET)
        with Service(ServiceSpec({"acme": shared_upstream.base_url}, routes, more_toml=more)) as running:
            change(running, "adopt", "forte")
            promote(running, "two", "a trial")
            yield running


class Script:
    """Sends requests with the token of an operator, and reads the events that each one writes."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.email = service.create_account(CREDIT_NANO)
        make_operator(service, self.email)
        self.token = create_token(service, self.email, list(SCOPES))
        self.unnamed: list[str] = []  # routes whose events do not name the token
        self.left = set(CHANGES)

    def change(self, method: str, route: str, body: Any, **in_path: str) -> Any:
        before = self.service.ledger.query(NEWEST)[0][0]
        seen = ask(self.service, self.token, method, route.format(**in_path), json.dumps(body).encode())
        assert seen.status in (200, 202, 204), (route, seen.text)
        wait_until(lambda: bool(self.service.ledger.query(EVENTS, before)), f"an event of {method} {route}")
        events = self.service.ledger.query(EVENTS, before)
        if {(event["actor"], event["token"]) for event in events} != {(self.email, self.token[:12])}:
            self.unnamed.append(f"{method} {route}")
        self.left.remove(f"{method} {route}")
        return seen.json if seen.text else None


def test_every_change_by_token_names_the_token(service: Service) -> None:
    """Each route of the site map that a token may use to change something writes events with the token in them."""
    script, somebody = Script(service), Account(service, CREDIT_NANO)
    assert somebody.api.chat().status == 200
    charged, other_id = somebody.charge()["completion_id"], account_id_of(service, somebody.email)
    [other_key] = service.ledger.query("SELECT id FROM keys WHERE account_id = ?", other_id)

    key = script.change("POST", "/keys", {"name": "ci"})["id"]
    script.change("PATCH", "/keys/{key_id}", {"name": "builds"}, key_id=key)
    script.change("DELETE", "/keys/{key_id}", {}, key_id=key)
    note = script.change("POST", "/memory", {"text": "I write British English."})["id"]
    script.change("PATCH", "/memory/{note_id}", {"text": "I write plain English."}, note_id=note)
    script.change("DELETE", "/memory/{note_id}", {}, note_id=note)
    script.change("PATCH", "/preferences", {"theme": "dark"})
    script.change("POST", "/vouchers/redeem", {"code": make_voucher(service)})
    script.change("PUT", "/credit/notice", {"amount": "3.00"})
    script.change("POST", "/payments", {"amount": "10.00"})
    account = {"account_id": other_id}
    script.change("POST", "/operator/accounts/{account_id}/suspend", {}, **account)
    script.change("POST", "/operator/accounts/{account_id}/resume", {}, **account)
    script.change("POST", "/operator/accounts/{account_id}/grants", {"amount": "1.00"}, **account)
    script.change("POST", "/operator/accounts/{account_id}/corrections", {"amount": "1.00", "reason": "why"}, **account)
    transfer = {"amount": "1.00", "reference": f"INV {other_id}"}
    script.change("POST", "/operator/accounts/{account_id}/transfers", transfer, **account)
    sent_back = {"transfer": transfer["reference"], "reason": "why"}
    script.change("POST", "/operator/accounts/{account_id}/transfers/refund", sent_back, **account)
    refund = {"reason": "a bad answer"}
    script.change("POST", "/operator/requests/{completion_id}/refund", refund, completion_id=charged)
    script.change("POST", "/operator/keys/{key_id}/revoke", {}, key_id=other_key["id"])
    script.change("POST", "/operator/classes/{class_id}/rollback", {"version": 2, "to": 1}, class_id="forte")
    script.change("POST", "/operator/ledger", {})

    assert (script.unnamed, script.left) == ([], set())
