"""Where an entry that is not a charge comes from: its origin.

| origin       | kind       | the entry                                                                     |
|--------------|------------|-------------------------------------------------------------------------------|
| `payment`    | grant      | credit that was paid for                                                      |
| `opening`    | grant      | granted when the account was created                                          |
| `voucher`    | grant      | granted by a voucher                                                          |
| `grant`      | grant      | granted by an operator                                                        |
| `return`     | correction | a payment was refunded, or its refund failed                                  |
| `dispute`    | correction | a payment was disputed, or its dispute was won                                |
| `refund`     | correction | an operator refunded a request                                                |
| `late-end`   | correction | a sweep had charged a request too much                                        |
| `correction` | correction | an operator took credit back                                                  |
| `erasure`    | correction | what was left when the account was erased                                     |
| `debt`       | correction | pays a debt                                                                   |
| `expiry`     | correction | granted credit has expired                                                    |
"""

from typing import Literal

import msgspec

Origin = Literal[
    "payment",
    "opening",
    "voucher",
    "grant",
    "return",
    "dispute",
    "refund",
    "late-end",
    "correction",
    "erasure",
    "debt",
    "expiry",
]
GRANTS = frozenset({"payment", "opening", "voucher", "grant"})
PAID_FIRST = frozenset({"return", "dispute"})  # they take back paid credit before granted credit


class CreditMove(msgspec.Struct, frozen=True):
    """Credit that is given or taken outside of requests. The source may move credit once; None: any number of times."""

    account_id: str
    origin: Origin
    amount_nano: int  # above zero
    note: str
    now_ms: int
    source: str | None = None
    completion_id: str | None = None
    returned_nano: int = 0  # what is given back of granted credit
    expires_at: int | None = None  # when what is left of a grant is taken back

    @property
    def kind(self) -> Literal["grant", "correction"]:
        return "grant" if self.origin in GRANTS else "correction"

    @property
    def granted_nano(self) -> int:
        """How much of what is given is granted credit."""
        return self.amount_nano if self.kind == "grant" and self.origin != "payment" else self.returned_nano
