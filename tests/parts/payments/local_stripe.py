"""Starts localstripe and plays the payer, the bank and Stripe's own sender of events."""

import contextlib
import hashlib
import hmac
import http.client
import json
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.installed import localstripe_environment
from tests.visitor import Seen, Visitor

PROGRAM = Path(__file__).parent / "localstripe_program.py"
SECRET_KEY = "sk_test_of_the_tests"
WEBHOOK_SECRET = "whsec_of_the_tests"
WEBHOOK = "/platform/webhooks/stripe"
STRIPE_TOML = """
[payments.stripe]
secret_key_env = "TEST_STRIPE_KEY"
webhook_secret_env = "TEST_STRIPE_WEBHOOK"
api_url = "{url}"
invoices = true
tax = "automatic"
"""
END_S = 30.0
REPLY_S = 60.0


class LocalStripe:
    """A running localstripe."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def send_events_to(self, port: int) -> None:
        body = json.dumps({"url": f"http://127.0.0.1:{port}{WEBHOOK}", "secret": WEBHOOK_SECRET})
        self._send("POST", "/_config/webhooks/cadenza", body)

    def session(self, checkout: str) -> dict[str, Any]:
        return self._send("GET", f"/v1/checkout/sessions/{checkout}", "")

    def pay(self, checkout: str) -> None:
        self._play(checkout, "pay")

    def refund(self, checkout: str, cents: int) -> None:
        self._play(checkout, f"refund?cents={cents}")

    def _play(self, checkout: str, act: str) -> None:
        self._send("POST", f"/_config/sessions/{checkout}/{act}", "{}")

    def _send(self, method: str, path: str, body: str) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REPLY_S)
        try:
            headers = {"content-type": "application/json", "authorization": f"Bearer {SECRET_KEY}"}
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        assert response.status == 200, text
        found: dict[str, Any] = json.loads(text) if text else {}
        return found


@contextlib.contextmanager
def running_stripe() -> Iterator[LocalStripe]:
    python = localstripe_environment() / "python"
    command = [str(python), str(PROGRAM)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout
            yield LocalStripe(int(process.stdout.readline()))
        finally:
            process.terminate()
            process.wait(END_S)


def make_event(kind: str, thing: object, event_id: str = "") -> bytes:
    name = event_id or f"evt_{secrets.token_hex(8)}"
    return json.dumps({"id": name, "object": "event", "type": kind, "data": {"object": thing}}).encode()


def send_event(port: int, body: bytes, *, secret: str = WEBHOOK_SECRET, age_s: int = 0, signature: str = "") -> Seen:
    """Send an event to the service with a signature of our own."""
    at_s = int(time.time()) - age_s
    made = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    headers = {
        "content-type": "application/json",
        "accept": "*/*",
        "stripe-signature": signature or f"t={at_s},v1={made}",
    }
    return Visitor(port).send("POST", WEBHOOK, body, headers)
