"""Runs in the environment of localstripe. Adds Checkout, which localstripe lacks, and prints its port.

Below /_config/sessions a test plays the payer and the bank: it pays and refunds a checkout. The payment itself, its
refunds, the events and their signatures are those of localstripe.
"""

import socket
import sys
import time
from typing import Any

from aiohttp import ClientSession, web
from localstripe import resources
from localstripe.errors import UserError
from localstripe.resources import Event, StripeObject, store
from localstripe.server import api_create, api_retrieve, app
from localstripe.webhooks import schedule_webhook

SESSIONS = "/v1/checkout/sessions"
HALF_AN_HOUR_S = 30 * 60
DAY_S = 24 * 60 * 60
CARD = {"number": "4242424242424242", "exp_month": 12, "exp_year": 2040, "cvc": "123"}


class Session(StripeObject):  # type: ignore[misc]  # localstripe has no types
    """A checkout for one line. Every public name of it is sent as a field."""

    object = "checkout.session"
    _id_prefix = "cs_test_"

    def __init__(self, mode: str, line_items: list[dict[str, Any]], success_url: str, **given: Any) -> None:
        [item] = line_items
        price = item["price_data"]
        expires_at = int(given.pop("expires_at"))
        if mode != "payment" or not HALF_AN_HOUR_S <= expires_at - time.time() <= DAY_S:
            raise UserError(400, "Bad request")
        if not price["product_data"]["name"] or int(price["unit_amount"]) < 50:
            raise UserError(400, "Bad request")
        super().__init__()
        self.amount_total = int(price["unit_amount"]) * int(item["quantity"])
        self.cancel_url = given.pop("cancel_url", None)
        self.client_reference_id = given.pop("client_reference_id", None)
        self.currency = price["currency"]
        self.customer_email = given.pop("customer_email", None)
        self.expires_at = expires_at
        self.mode = mode
        self.payment_intent: str | None = None
        self.payment_intent_data = given.pop("payment_intent_data", {})
        self.payment_status = "unpaid"
        self.status = "open"
        self.success_url = success_url
        self.url = f"https://checkout.stripe.example/c/pay/{self.id}"
        self.invoice: dict[str, str] | None = None  # as if every reader asked Stripe to expand it
        self.invoice_creation = given.pop("invoice_creation", {"enabled": "false"})
        self.automatic_tax = given.pop("automatic_tax", {"enabled": "false"})
        self.billing_address_collection = given.pop("billing_address_collection", None)
        self.tax_id_collection = given.pop("tax_id_collection", None)
        if self.automatic_tax["enabled"] == "true" and price.get("tax_behavior") != "inclusive":
            raise UserError(400, "A tax on top would change the amount")
        if given.pop("adaptive_pricing", {"enabled": "false"}) != {"enabled": "false"} or given:
            raise UserError(400, f"Unexpected {', '.join(given)}")


class Stage:
    """Plays the payer and the bank."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def play(self, request: web.Request) -> web.Response:
        session = store[f"checkout.session:{request.match_info['id']}"]
        if request.match_info["act"] == "pay":
            await self._pay(session)
        else:
            intent = session.payment_intent
            await self._ask("/v1/refunds", {"payment_intent": intent, "amount": request.query["cents"]})
            schedule_webhook(Event("charge.refunded", store[f"payment_intent:{intent}"].latest_charge))
        return web.Response()

    async def _pay(self, session: Session) -> None:
        session.payment_intent = await self._charge(session)
        session.status = "complete"
        if session.invoice_creation["enabled"] == "true":
            session.invoice = {"hosted_invoice_url": f"https://invoice.stripe.example/i/{session.id}"}
        session.payment_status = "paid"
        schedule_webhook(Event("checkout.session.completed", session))

    async def _charge(self, session: Session) -> str:
        """Pay by card. The charge gets the metadata of its payment intent, as at Stripe."""
        method = await self._ask("/v1/payment_methods", {"type": "card", "card": CARD})
        intent = await self._ask(
            "/v1/payment_intents",
            {
                "amount": session.amount_total,
                "currency": session.currency,
                "payment_method": method,
                "metadata": session.payment_intent_data.get("metadata", {}),
                "confirm": True,
            },
        )
        made = store[f"payment_intent:{intent}"]
        made.latest_charge.metadata = made.metadata
        return intent

    async def _ask(self, path: str, body: dict[str, Any]) -> str:
        """Use the API of localstripe; the id of what it made."""
        headers = {"authorization": "Bearer sk_test_of_the_bank"}
        async with (
            ClientSession(raise_for_status=True) as client,
            client.post(self._url + path, json=body, headers=headers) as reply,
        ):
            return str((await reply.json())["id"])


def main() -> None:
    resources.Store.dump_to_disk = lambda _: None  # it would write to a fixed file in /tmp
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()  # before the port is told: the test connects at once
    port = listening.getsockname()[1]
    app.router.add_post(SESSIONS, api_create(Session, SESSIONS))
    app.router.add_get(SESSIONS + "/{id}", api_retrieve(Session, SESSIONS))
    app.router.add_post("/_config/sessions/{id}/{act}", Stage(f"http://127.0.0.1:{port}").play)
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    web.run_app(app, sock=listening, print=None)


if __name__ == "__main__":
    main()
