"""Everything that the store has of one account: which columns its owner gets, what each means, and what is left out.

A table that refers to an account, a key or an address is in EXPORTED, or in LEFT_OUT with the reason. So is each column
of an exported table. A test compares both with the schema, so a new table or column fails it until that is decided.
"""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from sqlalchemy import Boolean, ColumnElement, Table, bindparam, case, literal_column, select, tuple_

from cadenza.store import schema
from cadenza.store.statements import Statement
from cadenza.store.store import Row, Store

PAGE = 1000

SECRET = "a secret, or a hash of one"  # noqa: S105 a reason
OWN_ID = "the account itself"
PROVIDERS = "which provider and model answered is known to operators only"
INTERNAL = "internal bookkeeping of the service"


class ExportedTable(msgspec.Struct, frozen=True):
    """A table, its file in the archive, and its columns. `order` are columns that tell its rows apart."""

    file: str
    table: Table
    about: str
    fields: dict[str, str]  # what each column means, in the order of the file
    left_out: dict[str, str] = {}  # the other columns, and why
    order: tuple[str, ...] = ("id",)
    owner: str = "account_id"  # the column that refers to the account

    def _column(self, name: str) -> ColumnElement[Any]:
        """The address of somebody else is not this person's data."""
        column = self.table.c[name]
        if self.table is not schema.audit_events or name != "actor":
            return column
        others = select(schema.accounts.c.email).where(schema.accounts.c.id != bindparam("account"))
        return case((column.in_(others), literal_column("'an operator'")), else_=column).label(name)

    def first_page(self) -> Statement:
        columns = [self._column(name) for name in self.fields]
        order = [self.table.c[name] for name in self.order]
        of_account = self.table.c[self.owner] == bindparam("account")
        return Statement(select(*columns, *order).where(of_account).order_by(*order).limit(bindparam("count")))

    def next_page(self) -> Statement:
        """After the row whose order columns have these values."""
        order = [self.table.c[name] for name in self.order]
        last = [bindparam(f"last_{name}", type_=self.table.c[name].type) for name in self.order]
        first = self.first_page().core
        return Statement(first.where(tuple_(*order) > tuple_(*last)))  # type: ignore[attr-defined]

    def is_flag(self, column: str) -> bool:
        return isinstance(self.table.c[column].type, Boolean)


EXPORTED = (
    ExportedTable(
        "account.json",
        schema.accounts,
        "The account and its preferences.",
        {
            "id": "id of the account",
            "email": "e-mail address",
            "created_at": "when the account was created",
            "verified_at": "when a link that was sent to the address was opened",
            "is_operator": "whether it may use the operator's pages",
            "suspended_at": "when it was suspended",
            "erased_at": "when it was erased",
            "preferred_class": "the class that `auto` means",
            "theme": "how pages look",
            "uses_search": "whether replies may search",
            "uses_memory": "whether replies may use notes",
            "shows_cost": "whether replies say what they cost",
            "balance_nano": "credit",
            "granted_nano": "the part of the credit that was not paid for",
            "held_nano": "the part that running requests hold",
            "debt_nano": "what is to be paid back from later credit",
            "low_balance_nano": "below this, a notice is sent",
            "low_noticed_at": "when the last notice was sent",
            "note_count": "how many notes there are",
        },
        {"password_hash": SECRET, "has_caps": INTERNAL, "granted_before_nano": INTERNAL},
        owner="id",
    ),
    ExportedTable(
        "keys.json",
        schema.keys,
        "API keys, without the keys themselves.",
        {
            "id": "id of the key",
            "name": "its name",
            "prefix": "its first characters",
            "scopes": "what it may do; empty: everything",
            "origin": "`owner`, or `web` for the key of the web chat",
            "created_at": "when it was created",
            "expires_at": "when it expires",
            "revoked_at": "when it was revoked",
            "last_used_at": "when it was last used",
            "requests_per_second": "its own rate, if it has one",
            "burst": "its own burst, if it has one",
            "is_capped": "whether it has a spend cap",
        },
        {"account_id": OWN_ID, "digest": SECRET},
    ),
    ExportedTable(
        "key_caps.json",
        schema.caps,
        "Spend caps of keys.",
        {
            "key_id": "id of the key",
            "period": "`month` or `total`",
            "limit_nano": "the most that it may spend",
            "month": "the month that `spent` is of, like 202611; 0 for all time",
            "spent_nano": "what it has spent of it",
        },
        {"account_id": OWN_ID, "excused_nano": INTERNAL},
        order=("key_id",),
    ),
    ExportedTable(
        "access_tokens.json",
        schema.access_tokens,
        "Access tokens for the platform API, without the tokens themselves.",
        {
            "id": "id of the token",
            "name": "its name",
            "prefix": "its first characters",
            "scopes": "what it may do",
            "created_at": "when it was created",
            "expires_at": "when it expires",
            "revoked_at": "when it was revoked",
            "last_used_at": "when it was last used",
        },
        {"account_id": OWN_ID, "digest": SECRET},
    ),
    ExportedTable(
        "sessions.json",
        schema.sessions,
        "Signed-in browsers.",
        {
            "agent": "the browser, as it names itself",
            "stage": "`complete`, or `second_factor` while that is missing",
            "created_at": "when it signed in",
            "used_at": "when it was last used",
            "proved_at": "when the password or a second factor was last given",
            "expires_at": "when it ends at the latest",
        },
        {"digest": SECRET, "account_id": OWN_ID},
        order=("digest",),
    ),
    ExportedTable(
        "links.json",
        schema.links,
        "Links in e-mails that were not used yet.",
        {
            "kind": "what the link does",
            "email": "the address that it was sent to",
            "created_at": "when it was made",
            "expires_at": "until when it works",
        },
        {"digest": SECRET, "account_id": OWN_ID},
        order=("digest",),
    ),
    ExportedTable(
        "authenticator_app.json",
        schema.totp,
        "The authenticator app.",
        {"confirmed_at": "when it was added; null: it is not in use yet"},
        {"account_id": OWN_ID, "secret": SECRET, "last_step": SECRET},
        order=("account_id",),
    ),
    ExportedTable(
        "passkeys.json",
        schema.passkeys,
        "Passkeys.",
        {
            "name": "its name",
            "created_at": "when it was added",
            "last_used_at": "when it was last used",
            "sign_count": "how often it was used, if the device counts",
        },
        {"id": SECRET, "account_id": OWN_ID, "public_key": SECRET},
    ),
    ExportedTable(
        "notes.json",
        schema.notes,
        "Notes: what replies should know.",
        {
            "id": "id of the note",
            "text": "its text",
            "created_at": "when it was written",
            "changed_at": "when it was last changed",
        },
        {"account_id": OWN_ID},
    ),
    ExportedTable(
        "buyer.json",
        schema.buyers,
        "What documents call the owner.",
        {"name": "name", "address": "address", "tax_id": "tax id"},
        {"account_id": OWN_ID},
        order=("account_id",),
    ),
    ExportedTable(
        "audit_events.json",
        schema.audit_events,
        "What was done to the account, and by whom.",
        {
            "id": "number of the event",
            "at": "when it was done",
            "actor": "who did it: an address, the id of the account, `an operator`, or `command line`",
            "act": "what was done",
            "subject": "the id of what it was done to",
            "detail": "more about it",
            "token": "the first characters of the access token that was used",
        },
        {"account_id": OWN_ID},
    ),
    ExportedTable(
        "statement.csv",
        schema.entries,
        "The statement: every change of the balance, oldest first.",
        {
            "id": "number of the entry",
            "created_at": "when it was made",
            "kind": "`grant`, `charge` or `correction`",
            "origin": "where it comes from, if it is not a charge",
            "amount_nano": "what was added; below zero: what was taken",
            "granted_nano": "the part of it that was not paid for",
            "note": "a note about it",
            "completion_id": "id of the reply that was charged or refunded",
            "source": "id of the payment, voucher or command",
            "debt_id": "number of the debt that it pays",
        },
        {"account_id": OWN_ID},
    ),
    ExportedTable(
        "debts.json",
        schema.debts,
        "Credit that was to be taken back and was already spent.",
        {
            "id": "number of the debt",
            "created_at": "when it was made",
            "source": "the refund, dispute or correction",
            "note": "a note about it",
            "amount_nano": "the debt",
            "left_nano": "what is not paid yet",
        },
        {"account_id": OWN_ID},
    ),
    ExportedTable(
        "credit_lots.json",
        schema.credit_lots,
        "What is left of granted credit, if some of it expires.",
        {
            "id": "number of the grant",
            "created_at": "when it was granted",
            "note": "a note about it",
            "amount_nano": "what was granted",
            "left_nano": "what was left when a grant was last added or expired",
            "expires_at": "when the rest expires",
            "ended_at": "when nothing was left",
        },
        {"account_id": OWN_ID},
    ),
    ExportedTable(
        "payments.json",
        schema.payments,
        "Payments by card.",
        {
            "id": "id of the payment",
            "provider": "who takes the payment",
            "checkout": "the provider's id of the checkout",
            "reference": "the provider's id of the payment",
            "amount_nano": "what was paid",
            "returned_nano": "what was returned of it",
            "state": "its state",
            "created_at": "when it was begun",
            "changed_at": "when its state last changed",
        },
        {"account_id": OWN_ID},
    ),
    ExportedTable(
        "vouchers.json",
        schema.vouchers,
        "Vouchers that were redeemed.",
        {
            "id": "id of the voucher",
            "prefix": "its first characters",
            "amount_nano": "its credit",
            "redeemed_at": "when it was redeemed",
            "credit_days": "after how many days its credit expires; null: never",
        },
        {
            "digest": SECRET,
            "redeemed_by": OWN_ID,
            "note": "a note of the operator",
            "created_at": "from before it was redeemed, when it belonged to no account",
            "expires_at": "it no longer applies: the voucher was redeemed in time",
        },
        owner="redeemed_by",
    ),
    ExportedTable(
        "documents.json",
        schema.documents,
        "Receipts, statements and credit notes. The folder `documents` has each as a PDF.",
        {
            "number": "number of the document",
            "kind": "`receipt`, `statement` or `credit-note`",
            "subject": "the payment, or the month of a statement",
            "issued_at": "when it was issued",
            "amount_nano": "what was paid or returned, or the closing balance",
            "payment_id": "id of the payment",
            "facts": "all that is written on it",
        },
        {"account_id": OWN_ID, "ordinal": "it is in the number", "digest": "the PDF has it"},
        order=("kind", "ordinal"),
    ),
    ExportedTable(
        "closed_balances.json",
        schema.closed_balances,
        "The balance at the end of each month that was closed.",
        {
            "month": "the month",
            "balance_nano": "the balance at its end",
            "granted_nano": "the part of it that was not paid for",
        },
        {"account_id": OWN_ID},
        order=("month",),
    ),
    ExportedTable(
        "usage.csv",
        schema.usage,
        "Each request, oldest first. A web search is a request of the class `search` with one prompt token.",
        {
            "completion_id": "id of the reply",
            "request_id": "id of the HTTP request",
            "started_at": "when it began",
            "key_id": "id of the key",
            "class_id": "the class that answered",
            "stream": "whether the reply was streamed",
            "status": "HTTP status; 499: the client disconnected",
            "prompt_tokens": "tokens in",
            "cached_tokens": "the part of them that was cached",
            "completion_tokens": "tokens out",
            "estimated": "whether we counted the tokens, not the provider",
            "input_nano": "price of a token in",
            "cached_input_nano": "price of a cached token; empty: like the others",
            "output_nano": "price of a token out",
            "cost_nano": "what the request cost",
            "first_byte_ms": "milliseconds to the first part of the reply",
            "duration_ms": "milliseconds to its end",
        },
        {
            "account_id": OWN_ID,
            "provider": PROVIDERS,
            "model": PROVIDERS,
            "version": PROVIDERS,
            "provider_cost_nano": PROVIDERS,
            "held_nano": INTERNAL,
            "short_nano": INTERNAL,
            "source": INTERNAL,
            "idempotency_digest": SECRET,
        },
        order=("started_at", "completion_id"),
    ),
    ExportedTable(
        "usage_days.csv",
        schema.usage_days,
        "Old requests, as sums by day.",
        {
            "started_at": "the day, in UTC",
            "key_id": "id of the key",
            "class_id": "the class that answered",
            "status": "HTTP status",
            "estimated": "whether we counted the tokens, not the provider",
            "requests": "number of requests",
            "prompt_tokens": "tokens in",
            "cached_tokens": "the part of them that was cached",
            "completion_tokens": "tokens out",
            "input_nano": "price of a token in",
            "cached_input_nano": "price of a cached token; empty: like the others",
            "output_nano": "price of a token out",
            "cost_nano": "what the requests cost",
        },
        {
            "id": INTERNAL,
            "account_id": OWN_ID,
            "provider": PROVIDERS,
            "model": PROVIDERS,
            "version": PROVIDERS,
            "provider_cost_nano": PROVIDERS,
            "short_nano": INTERNAL,
            "charged_at": INTERNAL,
            "charged_nano": INTERNAL,
        },
        order=("started_at", "id"),
    ),
    ExportedTable(
        "request_details.csv",
        schema.request_details,
        "Requests of the last days that were refused, failed, retried, slow or grounded.",
        {
            "request_id": "id of the HTTP request",
            "completion_id": "id of the reply, if credit was held for it",
            "key_id": "id of the key",
            "endpoint": "what was asked for",
            "class_id": "the class",
            "status": "HTTP status",
            "cause": "why it is here",
            "fault": "what went wrong",
            "is_charged": "whether it is on the statement",
            "ended_at": "when it ended",
            "first_byte_ms": "milliseconds to the first part of the reply",
            "duration_ms": "milliseconds to its end",
        },
        {
            "id": INTERNAL,
            "account_id": OWN_ID,
            "provider": PROVIDERS,
            "model": PROVIDERS,
            "version": PROVIDERS,
            "steps": PROVIDERS,
            "held_ms": INTERNAL,
            "answered_ms": INTERNAL,
            "settle_ms": INTERNAL,
        },
    ),
)
LEFT_OUT = {
    "recovery_codes": "hashes of the codes; account pages say how many are left",
    "idempotency": "hashes of the Idempotency-Key headers of the last 24 hours",
    "reserves": "credit that running requests hold; account.json has the sum",
    "marks": "how far running requests are; usage.csv has them when they end",
    "holds": "credit that requests of an earlier release held; usage.csv has the requests",
    "cap_holds": "what running requests of a key with a spend cap hold",
    "class_versions": "what an operator did to a class, for the service",
    "verdicts": "evaluations that an operator started, for the service",
    "price_changes": "prices that an operator set, for the service",
}


async def read_pages(store: Store, exported: ExportedTable, account_id: str) -> AsyncIterator[list[Row]]:
    """The rows of an account by `fields`, a page at a time."""
    count = len(exported.fields)
    values: dict[str, Any] = {"account": account_id, "count": PAGE}
    rows = await store.rows(exported.first_page(), values, is_long=True)
    following = exported.next_page()
    while rows:
        yield [row[:count] for row in rows]
        if len(rows) < PAGE:
            return
        last = dict(zip(exported.order, rows[-1][count:], strict=True))
        place = {f"last_{name}": value for name, value in last.items()}
        rows = await store.rows(following, {**values, **place}, is_long=True)
