"""What a payment provider reports: facts about payments, each in an event that it signed."""

from typing import Literal

import msgspec

from cadenza.ledger.payments import PaymentIds

PAID_NOTE = "card payment"
RETURN_NOTE = "refund of a card payment"


class Paid(msgspec.Struct, frozen=True):
    """The payment was made. The amount is None if it is not in dollars. The note is that of the entry."""

    amount_nano: int | None
    note: str = PAID_NOTE


class Expired(msgspec.Struct, frozen=True):
    """The checkout expired without a payment."""


class Refunded(msgspec.Struct, frozen=True, tag=True):
    """The payment was refunded, in part or in full: the total so far. The note is that of the entry."""

    total_nano: int | None
    note: str = RETURN_NOTE


class RefundFailed(msgspec.Struct, frozen=True, tag=True):
    """A refund did not reach the payer: the provider has given the amount back to us."""

    refund: str
    amount_nano: int | None


class Disputed(msgspec.Struct, frozen=True, tag=True):
    """The owner of the card disputes the payment, and the provider has withdrawn this amount."""

    dispute: str
    amount_nano: int | None


class DisputeClosed(msgspec.Struct, frozen=True, tag=True):
    """A dispute has ended."""

    dispute: str
    amount_nano: int | None
    result: Literal["won", "lost"]


KeptFact = Refunded | RefundFailed | Disputed | DisputeClosed
Fact = Paid | Expired | KeptFact


class PaymentEvent(msgspec.Struct, frozen=True):
    """Something that happened to a payment, as its provider reports it. `kind` is the provider's name for it.

    It happened at `happened_at` by the provider's clock.
    """

    id: str
    kind: str
    subject: PaymentIds
    fact: Fact
    happened_at: int = 0
