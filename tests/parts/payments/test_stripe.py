"""Stripe: signatures of events, and what is read from their bodies."""

import hashlib
import hmac
import json
from typing import Any

import pytest

from cadenza.config.checks import Secret
from cadenza.ledger.payments import PaymentIds
from cadenza.parts.payments.events import (
    DisputeClosed,
    Disputed,
    Expired,
    Fact,
    Paid,
    PaymentEvent,
    Refunded,
    RefundFailed,
)
from cadenza.parts.payments.settings import StripeSettings
from cadenza.parts.payments.stripe import (
    SIGNATURE_CHARS_MAX,
    TOLERANCE_S,
    BadSignature,
    Stripe,
    check_signature,
)

SECRET = b"whsec_test"
NOW_S = 1_800_000_000
ACCOUNT = StripeSettings(
    secret_key_env="",
    webhook_secret_env="",
    api_url="http://127.0.0.1:1",
    secret_key=Secret("sk_test_1"),
    webhook_secret=Secret(SECRET.decode()),
)
BODY = b'{"id":"evt_1"}'
SESSION = {"id": "cs_1", "payment_intent": "pi_1", "payment_status": "paid", "amount_total": 1000, "currency": "usd"}
REFUND = {"id": "re_1", "amount": 250, "currency": "usd", "payment_intent": "pi_1"}
DISPUTE = {"id": "dp_1", "amount": 1000, "currency": "usd", "payment_intent": "pi_1"}


def sign(body: bytes, at_s: int = NOW_S, secret: bytes = SECRET) -> str:
    return hmac.new(secret, f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()


@pytest.mark.parametrize("age_s", [0, TOLERANCE_S, -TOLERANCE_S])
def test_a_recent_signature_is_accepted(age_s: int) -> None:
    """A signature of the raw body counts for five minutes; a clock may be off by as much."""
    at_s = NOW_S - age_s
    check_signature(SECRET, BODY, f"t={at_s},v1={sign(BODY, at_s)}", NOW_S)


def test_one_of_several_signatures_is_enough() -> None:
    """While the secret is being replaced, an event has two signatures; other schemes are ignored."""
    check_signature(SECRET, BODY, f"t={NOW_S}, v1={'0' * 64}, v1={sign(BODY)}, v0=x", NOW_S)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "t=,v1=",
        f"t={NOW_S}",
        f"v1={sign(BODY)}",
        f"t={NOW_S},v0={sign(BODY)}",
        f"t={NOW_S},v1={sign(BODY, secret=b'another')}",
        f"t={NOW_S},v1={sign(BODY + b' ')}",
        f"t={NOW_S + 1},v1={sign(BODY)}",
        f"t={NOW_S},t={NOW_S},v1={sign(BODY)}",
        f"t={NOW_S - TOLERANCE_S - 1},v1={sign(BODY, NOW_S - TOLERANCE_S - 1)}",
        f"t={NOW_S + TOLERANCE_S + 1},v1={sign(BODY, NOW_S + TOLERANCE_S + 1)}",
        f"t=-1,v1={sign(BODY, -1)}",
        "t=" + "9" * 5000 + ",v1=x",
        "t=١,v1=é",
        f"t={NOW_S},v1={sign(BODY).upper()}é",
        f"t={NOW_S},v1={sign(BODY)}".ljust(SIGNATURE_CHARS_MAX + 1, ","),
    ],
)
def test_any_other_signature_is_refused(header: str) -> None:
    """A missing, forged or old signature, or one of another body, is refused."""
    with pytest.raises(BadSignature):
        check_signature(SECRET, BODY, header, NOW_S)


def read(kind: str, thing: Any) -> PaymentEvent | None:
    body = json.dumps(
        {"id": "evt_1", "object": "event", "type": kind, "data": {"object": thing}, "created": 7}
    ).encode()
    stripe = Stripe(ACCOUNT)
    return stripe.read_event(body, f"t={NOW_S},v1={sign(body)}", NOW_S)


@pytest.mark.parametrize(
    ("kind", "thing", "subject", "fact"),
    [
        ("checkout.session.completed", SESSION, PaymentIds("", "cs_1", "pi_1"), Paid(10 * 10**9)),
        ("checkout.session.async_payment_succeeded", SESSION, PaymentIds("", "cs_1", "pi_1"), Paid(10 * 10**9)),
        ("checkout.session.completed", {**SESSION, "currency": "eur"}, PaymentIds("", "cs_1", "pi_1"), Paid(None)),
        ("checkout.session.expired", {"id": "cs_1"}, PaymentIds("", "cs_1", ""), Expired()),
        (
            "charge.refunded",
            {"amount_refunded": 250, "currency": "usd", "payment_intent": "pi_1", "metadata": {"payment": "pay_1"}},
            PaymentIds("pay_1", "", "pi_1"),
            Refunded(25 * 10**8),
        ),
        *(
            (kind, {**REFUND, "status": status}, PaymentIds("", "", "pi_1"), RefundFailed("re_1", 25 * 10**8))
            for kind, status in (
                ("refund.failed", "failed"),
                ("refund.updated", "canceled"),
                ("charge.refund.updated", "failed"),
            )
        ),
        *(
            (kind, {**DISPUTE, "status": "needs_response"}, PaymentIds("", "", "pi_1"), Disputed("dp_1", 10**10))
            for kind in ("charge.dispute.created", "charge.dispute.funds_withdrawn")
        ),
        (
            "charge.dispute.closed",
            {**DISPUTE, "status": "lost"},
            PaymentIds("", "", "pi_1"),
            DisputeClosed("dp_1", 10**10, "lost"),
        ),
        (
            "charge.dispute.closed",
            {**DISPUTE, "status": "won"},
            PaymentIds("", "", "pi_1"),
            DisputeClosed("dp_1", 10**10, "won"),
        ),
    ],
)
def test_events_of_payments_are_read(kind: str, thing: Any, subject: PaymentIds, fact: Fact) -> None:
    """Each kind of event that concerns a payment becomes what it means for us."""
    event = read(kind, thing)
    assert event
    assert event == PaymentEvent("evt_1", kind, subject, fact, 7000)


@pytest.mark.parametrize(
    ("kind", "thing"),
    [
        ("checkout.session.completed", {**SESSION, "payment_status": "unpaid"}),
        ("charge.dispute.created", {**DISPUTE, "status": "warning_needs_response"}),
        ("charge.dispute.closed", {**DISPUTE, "status": "warning_closed"}),
        ("charge.refunded", {"amount_refunded": "many"}),
        ("refund.updated", {**REFUND, "status": "succeeded"}),
        ("charge.refunded", None),
        ("customer.created", {"id": "cus_1"}),
        ("", {}),
    ],
)
def test_other_events_are_ignored(kind: str, thing: Any) -> None:
    """What is not paid yet, an inquiry without money, and everything unknown or malformed changes nothing."""
    assert read(kind, thing) is None


def test_secrets_are_not_shown() -> None:
    """The repr of the settings has no secret."""
    assert "sk_test" not in repr(ACCOUNT)
