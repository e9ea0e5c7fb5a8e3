"""Receipts, statements and credit notes: what a document says, as it was issued.

The facts of a document are stored as JSON with their SHA-256, and it is shown from these alone. So a later change of
the config or of the account changes no document that was issued. Every amount is in nano-dollars.
"""

import hashlib
from datetime import UTC, datetime
from typing import Literal

import msgspec

from cadenza.core.money import format_dollars
from cadenza.core.records import SEARCH

DocumentKind = Literal["receipt", "statement", "credit-note"]
TITLES: dict[DocumentKind, str] = {"receipt": "Receipt", "statement": "Statement", "credit-note": "Credit note"}
LETTERS: dict[DocumentKind, str] = {"receipt": "R", "statement": "S", "credit-note": "C"}
CENT_NANO = 10_000_000
RATE_SCALE = 1000  # a tax rate is in thousandths of a percent
PER_CENT = 100 * RATE_SCALE


class Party(msgspec.Struct, frozen=True):
    """The seller or the buyer. An address has one or more lines."""

    name: str
    address: str = ""
    tax_id: str = ""


class Seller(msgspec.Struct, frozen=True):
    """Who issues documents, how they are numbered, and the tax that a payment includes."""

    party: Party
    number_prefix: str = ""
    tax_label: str = "Tax"
    tax_rate: int = 0  # thousandths of a percent
    note: str = ""


class TaxLine(msgspec.Struct, frozen=True):
    """The tax that an amount includes."""

    label: str
    rate: int
    net_nano: int
    tax_nano: int

    @property
    def words(self) -> str:
        """VAT 19%."""
        whole, part = divmod(self.rate, RATE_SCALE)
        decimals = f"{part:03}".rstrip("0")
        return f"{self.label} {whole}{'.' if decimals else ''}{decimals}%"


class DocumentLine(msgspec.Struct, frozen=True):
    """What an amount is for."""

    label: str
    amount_nano: int


class ClassCharges(msgspec.Struct, frozen=True):
    """What the requests to one class were charged in a month."""

    class_id: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    amount_nano: int


class DocumentFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a document says. `total_nano` is what was paid or returned, or the closing balance."""

    kind: DocumentKind
    number: str
    account_id: str
    issued_at: int
    seller: Party
    buyer: Party
    lines: tuple[DocumentLine, ...]
    total_nano: int
    currency: str = "USD"
    note: str = ""
    tax: TaxLine | None = None
    payment_id: str = ""
    payment_reference: str = ""  # the provider's
    moved_at: int | None = None  # when the payment was made or returned
    receipt: str = ""  # the number of the receipt that a credit note corrects
    month: str = ""
    opening_nano: int = 0
    charges: tuple[ClassCharges, ...] = ()

    @property
    def title(self) -> str:
        return TITLES[self.kind]

    @property
    def total_label(self) -> str:
        return {"receipt": "Paid", "statement": "Closing balance", "credit-note": "Returned"}[self.kind]

    @property
    def total(self) -> str:
        return format_dollars(self.total_nano)

    def about(self) -> list[tuple[str, str]]:
        """The facts above the table, each with its name."""
        found = [("Number", self.number), ("Issued", day_words(self.issued_at))]
        if self.month:
            found.append(("Month", f"{self.month}, from midnight to midnight UTC"))
        if self.receipt:
            found.append(("Corrects", self.receipt))
        if self.moved_at is not None:
            found.append(("Paid" if self.kind == "receipt" else "Returned", day_words(self.moved_at)))
        if self.payment_id:
            found.append(("Payment", self.payment_id))
        if self.payment_reference:
            found.append(("Payment reference", self.payment_reference))
        return [*found, ("Account", self.account_id)]

    def rows(self) -> list[tuple[str, str]]:
        """The table: each line and its amount, without the total."""
        before = [("Opening balance", self.opening_nano)] if self.kind == "statement" else []
        after = [("Net", self.tax.net_nano), (self.tax.words, self.tax.tax_nano)] if self.tax else []
        lines = [(line.label, line.amount_nano) for line in self.lines]
        return [(label, format_dollars(amount_nano)) for label, amount_nano in (*before, *lines, *after)]


def class_words(class_id: str) -> str:
    """Older charges do not say their class."""
    return {SEARCH: "Web search", "": "Other"}.get(class_id, class_id)


def split_tax(seller: Seller, amount_nano: int) -> TaxLine | None:
    """The tax that an amount includes, to the cent, half a cent up; None without a tax rate."""
    if not seller.tax_rate:
        return None
    assert amount_nano % CENT_NANO == 0
    whole = PER_CENT + seller.tax_rate
    cents = (amount_nano // CENT_NANO * seller.tax_rate * 2 + whole) // (whole * 2)
    tax_nano = cents * CENT_NANO
    return TaxLine(seller.tax_label, seller.tax_rate, amount_nano - tax_nano, tax_nano)


def number_text(seller: Seller, kind: DocumentKind, number: int) -> str:
    """R-000001, with the prefix of the config in front."""
    return f"{seller.number_prefix}{LETTERS[kind]}-{number:06}"


def encode_facts(facts: DocumentFacts) -> str:
    return msgspec.json.encode(facts, order="deterministic").decode()


def decode_facts(text: str) -> DocumentFacts:
    return msgspec.json.decode(text, type=DocumentFacts)


def digest_facts(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def day_words(at_ms: int) -> str:
    """31 October 2026 (UTC)."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at.day} {at:%B %Y} (UTC)"
