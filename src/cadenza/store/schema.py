"""The tables of SQLite and Postgres. Times are Unix milliseconds, money is in nano-dollars.

The CHECK constraints hold for every program that writes. The migrations build the same tables by hand (a test
compares the two) and add the triggers that make `entries` append-only and keep closed months as they are. A chat
has two ids: `completion_id`, the id of its reply (chatcmpl-…), and `request_id`, the x-request-id of its HTTP request.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    false,
    text,
    true,
)

from cadenza.store import class_tables
from cadenza.store.table_parts import index_where, required

metadata = class_tables.class_versions.metadata  # of all tables

accounts = Table(
    "accounts",
    metadata,
    Column("id", Text, primary_key=True),
    Column("email", Text, nullable=False, unique=True),
    Column("password_hash", Text, nullable=False),
    Column("preferred_class", Text, nullable=False, server_default="forte"),
    Column("balance_nano", BigInteger, nullable=False, server_default=text("0")),
    Column("held_nano", BigInteger, nullable=False, server_default=text("0")),
    Column("created_at", BigInteger, nullable=False),
    Column("is_operator", Boolean, nullable=False, server_default=false()),
    Column("suspended_at", BigInteger),  # its keys and sessions are refused
    Column("verified_at", BigInteger),  # when its owner opened a link that was sent to the address
    Column("theme", Text, nullable=False, server_default="system"),
    Column("uses_search", Boolean, nullable=False, server_default=true()),
    Column("uses_memory", Boolean, nullable=False, server_default=true()),
    Column("has_caps", Boolean, nullable=False, server_default=false()),  # a key of it has a spend cap
    Column("low_balance_nano", BigInteger, nullable=False, server_default=text("1000000000")),  # below it, a notice
    Column("low_noticed_at", BigInteger),  # when the notice was sent; null again when the balance rises
    Column("note_count", Integer, nullable=False, server_default=text("0")),
    Column("erased_at", BigInteger),  # when its personal data was erased; money and usage remain
    Column("debt_nano", BigInteger, nullable=False, server_default=text("0")),  # the sum of its open debts
    Column("granted_nano", BigInteger, nullable=False, server_default=text("0")),  # of the balance
    Column("granted_before_nano", BigInteger, nullable=False, server_default=text("0")),  # by older entries
    Column("shows_cost", Boolean, nullable=False, server_default=false()),  # replies say what they cost
    CheckConstraint("email = lower(email)", name="email_is_lower_case"),
    CheckConstraint("preferred_class IN ('mezzo', 'forte', 'fortissimo')", name="preferred_class_is_known"),
    CheckConstraint("held_nano >= 0", name="held_is_not_negative"),
    CheckConstraint("balance_nano - held_nano >= 0", name="balance_covers_held"),
)

keys = Table(
    "keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    *required(Text, "name", "prefix"),
    Column("digest", LargeBinary(32), nullable=False),
    Column("scopes", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    *(Column(name, BigInteger) for name in ("expires_at", "revoked_at", "last_used_at")),
    Column("requests_per_second", Float),
    Column("burst", Integer),
    Column("origin", Text, nullable=False, server_default="owner"),  # 'web': of the web application
    Column("is_capped", Boolean, nullable=False, server_default=false()),
    CheckConstraint("length(prefix) = 12", name="prefix_has_12_characters"),
    CheckConstraint("length(digest) = 32", name="digest_has_32_bytes"),
    CheckConstraint("expires_at > created_at", name="expires_after_creation"),
    Index("uq_keys_digest", "digest", unique=True),
    Index("ix_keys_account_id", "account_id"),
)

entries = Table(
    "entries",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("amount_nano", BigInteger, nullable=False),
    Column("completion_id", Text),
    Column("note", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("source", Text),  # the voucher, payment, refund or command, which moves credit once
    Column("debt_id", BigInteger),  # of a correction that pays a debt
    Column("origin", Text),  # ledger/origins.py; null in charges and older rows
    Column("granted_nano", BigInteger),  # the part of the amount that is granted credit; null in older rows
    CheckConstraint("kind = 'charge' OR kind = 'grant' OR kind = 'correction'", name="kind_is_known").ddl_if("sqlite"),
    CheckConstraint("kind IN ('grant', 'charge', 'correction')", name="kind_is_known").ddl_if("postgresql"),
    CheckConstraint("kind <> 'grant' OR amount_nano > 0", name="grant_is_positive"),
    CheckConstraint("kind <> 'charge' OR amount_nano <= 0", name="charge_is_not_positive"),
    CheckConstraint("kind <> 'charge' OR completion_id IS NOT NULL", name="charge_has_request"),
    Index("ix_entries_account_id", "account_id", "id"),
    index_where("kind = 'charge'", "uq_entries_charge", "completion_id", unique=True),
    index_where("kind = 'correction'", "ix_entries_correction", "completion_id"),
    index_where("source IS NOT NULL", "uq_entries_source", "source", unique=True),
)

processes = Table(  # the serving processes: live ones, and dead ones that were not swept yet
    "processes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("beats", BigInteger, nullable=False, server_default=text("0")),  # the heartbeat counter; below zero: fenced
    Column("seen", BigInteger, nullable=False, server_default=text("0")),  # the epoch of changes that it has seen
    *(Column(name, Text) for name in ("version", "revision", "host")),  # null: a program up to schema 0007
    Column("pid", Integer),
)

reserves = Table(  # credit of an account, from which a process takes holds in memory
    "reserves",
    metadata,
    Column("account_id", Text, ForeignKey("accounts.id"), primary_key=True),
    Column("process", Text, ForeignKey("processes.name"), primary_key=True),
    Column("amount_nano", BigInteger, nullable=False),
    Column("has_spare", Boolean, nullable=False),  # more than the requests in flight need
    Column("is_asked", Boolean, nullable=False, server_default=false()),  # another process asks for the spare part
    CheckConstraint("amount_nano >= 0", name="amount_is_not_negative"),
    Index("ix_reserves_process", "process"),
)

marks = Table(  # what a running request has delivered; it is charged if its process dies
    "marks",
    metadata,
    Column("completion_id", Text, primary_key=True),
    Column("request_id", Text, nullable=False),
    Column("process", Text, ForeignKey("processes.name"), nullable=False),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    Column("key_id", Text, ForeignKey("keys.id"), nullable=False),
    Column("class_id", Text, nullable=False),
    *required(Integer, "prompt_tokens", "delivered_tokens"),
    *required(BigInteger, "input_nano", "output_nano"),
    Column("cached_input_nano", BigInteger),
    Column("stream", Boolean, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("version", Integer),  # of its class; null in older rows
    CheckConstraint("prompt_tokens >= 0 AND delivered_tokens > 0", name="tokens_are_counted"),
)

holds = Table(  # holds of an older release, which wrote one for each request; no new rows
    "holds",
    metadata,
    Column("completion_id", Text, primary_key=True),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    Column("key_id", Text, ForeignKey("keys.id"), nullable=False),
    *required(Text, "class_id", "owner", "state"),
    Column("amount_nano", BigInteger, nullable=False),
    *required(Integer, "prompt_tokens", "delivered_tokens"),
    *required(BigInteger, "input_nano", "output_nano"),
    Column("cached_input_nano", BigInteger),
    Column("stream", Boolean, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("request_id", Text, nullable=False, server_default=text("''")),
    CheckConstraint("state IN ('open', 'settled', 'released')", name="state_is_known"),
    CheckConstraint("(state = 'open') = (ended_at IS NULL)", name="ended_has_a_time"),
    CheckConstraint("amount_nano >= 0", name="amount_is_not_negative"),
    CheckConstraint("prompt_tokens >= 0 AND delivered_tokens >= 0", name="tokens_are_not_negative"),
    index_where("state = 'open'", "ix_holds_open", "account_id", "owner"),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("account_id", Text, ForeignKey("accounts.id"), primary_key=True),
    Column("digest", LargeBinary(32), primary_key=True),
    *required(Text, "completion_id", "request_id"),
    Column("created_at", BigInteger, nullable=False),
    Column("process", Text),  # while its request runs
    Index("ix_idempotency_created_at", "created_at"),
    Index("ix_idempotency_process", "process"),
)

usage = Table(
    "usage",
    metadata,
    Column("completion_id", Text, primary_key=True),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    Column("key_id", Text, ForeignKey("keys.id"), nullable=False),
    *required(Text, "class_id", "provider", "model"),
    *required(Integer, "prompt_tokens", "cached_tokens", "completion_tokens"),
    Column("cost_nano", BigInteger, nullable=False),
    Column("estimated", Boolean, nullable=False),
    Column("status", Integer, nullable=False),
    Column("stream", Boolean, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("first_byte_ms", BigInteger),
    Column("duration_ms", BigInteger, nullable=False),
    Column("request_id", Text, nullable=False, server_default=text("''")),
    *(Column(f"{name}_nano", BigInteger) for name in ("input", "output", "cached_input", "held", "short")),
    Column("source", Text),  # who ended it: ledger/rules.py. These seven columns are null in older rows
    Column("idempotency_digest", LargeBinary(32)),
    Column("version", Integer),  # of the class that served it; null in older rows
    Column("provider_cost_nano", BigInteger),  # what the provider charges for it; null: not known
    CheckConstraint("cached_tokens BETWEEN 0 AND prompt_tokens", name="cached_is_part_of_prompt"),
    CheckConstraint("completion_tokens >= 0", name="completion_is_not_negative"),
    CheckConstraint("cost_nano >= 0", name="cost_is_not_negative"),
    Index("ix_usage_account_id", "account_id", "started_at"),
)

usage_days = Table(  # metering rows that were rolled up: the same sums for each day, without requests
    "usage_days",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    Column("key_id", Text, ForeignKey("keys.id"), nullable=False),
    *required(Text, "class_id", "provider", "model"),
    *(Column(name, BigInteger) for name in ("version", "input_nano", "output_nano", "cached_input_nano")),
    Column("status", Integer, nullable=False),
    Column("estimated", Boolean, nullable=False),
    Column("started_at", BigInteger, nullable=False),  # the start of the day in UTC
    Column("charged_at", BigInteger),  # the start of the day of the charges; null: these requests have none
    *required(BigInteger, "requests", "prompt_tokens", "cached_tokens", "completion_tokens"),
    Column("cost_nano", BigInteger, nullable=False),
    Column("charged_nano", BigInteger, nullable=False),  # the sum of the charges, before they were corrected
    *(Column(name, BigInteger) for name in ("short_nano", "provider_cost_nano")),
    CheckConstraint("requests > 0", name="requests_are_counted"),
    CheckConstraint("cached_tokens BETWEEN 0 AND prompt_tokens", name="cached_is_part_of_prompt"),
    CheckConstraint("completion_tokens >= 0", name="completion_is_not_negative"),
    CheckConstraint("cost_nano >= 0 AND charged_nano >= 0", name="cost_is_not_negative"),
    Index("ix_usage_days_account_id", "account_id", "started_at"),
)

retention = Table(  # what the limits of [retention] have removed or rolled up
    "retention",
    metadata,
    Column("name", Text, primary_key=True),  # what is kept: control/retention.py
    Column("kept_from", BigInteger),  # what is older is gone, or will be soon
    Column("worked_at", BigInteger, nullable=False),  # when a process last worked on it
)

epochs = Table(  # counters that tell processes when to read something again
    "epochs",
    metadata,
    Column("name", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
)

caps = Table(  # the most that a key may spend, and what it has spent of it
    "caps",
    metadata,
    Column("key_id", Text, ForeignKey("keys.id"), primary_key=True),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    Column("period", Text, nullable=False),
    Column("limit_nano", BigInteger, nullable=False),
    Column("month", Integer, nullable=False),  # the month of `spent_nano`, like 202611 in UTC; 0 for a cap on all time
    Column("spent_nano", BigInteger, nullable=False),
    Column("excused_nano", BigInteger, nullable=False),  # beyond the limit, by requests that ran before it was set
    CheckConstraint("period IN ('total', 'month')", name="period_is_known"),
    CheckConstraint("limit_nano >= 0 AND spent_nano >= 0 AND excused_nano >= 0", name="money_is_not_negative"),
    CheckConstraint("spent_nano - limit_nano <= excused_nano", name="spent_is_within_limit"),
    Index("ix_caps_account_id", "account_id"),
)

cap_holds = Table(  # what running requests of a capped key may still spend, by the process that serves them
    "cap_holds",
    metadata,
    Column("key_id", Text, ForeignKey("keys.id"), primary_key=True),
    Column("process", Text, ForeignKey("processes.name"), primary_key=True),
    Column("amount_nano", BigInteger, nullable=False),
    CheckConstraint("amount_nano >= 0", name="amount_is_not_negative"),
    Index("ix_cap_holds_process", "process"),
)

sessions = Table(  # signed-in browsers, by the digest of their cookie
    "sessions",
    metadata,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    Column("stage", Text, nullable=False),
    Column("agent", Text, nullable=False),  # the browser, as it names itself
    *required(BigInteger, "created_at", "used_at"),
    Column("proved_at", BigInteger, nullable=False),  # when the password or a second factor was last given
    Column("expires_at", BigInteger, nullable=False),
    CheckConstraint("stage IN ('second_factor', 'complete')", name="stage_is_known"),
    Index("ix_sessions_account_id", "account_id"),
    Index("ix_sessions_expires_at", "expires_at"),
)

access_tokens = Table(  # what scripts use /platform/api with
    "access_tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    *required(Text, "name", "prefix"),
    Column("digest", LargeBinary(32), nullable=False),
    Column("scopes", Text, nullable=False),
    *required(BigInteger, "created_at", "expires_at"),
    *(Column(name, BigInteger) for name in ("revoked_at", "last_used_at")),
    CheckConstraint("length(digest) = 32", name="digest_has_32_bytes"),
    CheckConstraint("length(scopes) > 0", name="scopes_are_named"),
    CheckConstraint("expires_at > created_at", name="expires_after_creation"),
    Index("uq_access_tokens_digest", "digest", unique=True),
    Index("ix_access_tokens_account_id", "account_id"),
)

links = Table(  # links in e-mails; each works once
    "links",
    metadata,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("kind", Text, nullable=False),
    Column("account_id", Text, ForeignKey("accounts.id")),  # none for an invitation
    Column("email", Text, nullable=False),  # the address that it was sent to; empty for an open invitation
    *required(BigInteger, "created_at", "expires_at"),
    CheckConstraint("kind IN ('verify', 'reset', 'change_email', 'invite')", name="kind_is_known"),
    Index("ix_links_account_id", "account_id"),
)

totp = Table(  # the authenticator app of an account
    "totp",
    metadata,
    Column("account_id", Text, ForeignKey("accounts.id"), primary_key=True),
    Column("secret", LargeBinary, nullable=False),
    Column("last_step", BigInteger, nullable=False, server_default=text("0")),  # a code is accepted once
    Column("confirmed_at", BigInteger),  # when its owner first gave a code; null: it is not in use yet
)

recovery_codes = Table(
    "recovery_codes",
    metadata,
    Column("account_id", Text, ForeignKey("accounts.id"), primary_key=True),
    Column("digest", LargeBinary(32), primary_key=True),
)

passkeys = Table(
    "passkeys",
    metadata,
    Column("id", LargeBinary, primary_key=True),  # the credential id
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("public_key", LargeBinary, nullable=False),
    *required(BigInteger, "sign_count", "created_at"),
    Column("last_used_at", BigInteger),
    Index("ix_passkeys_account_id", "account_id"),
)

site_secrets = Table(  # random keys that the site signs with, the same in every process
    "site_secrets",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary(32), nullable=False),
)

notes = Table(  # what the owner of an account wants replies to know
    "notes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    Column("text", Text, nullable=False),
    *required(BigInteger, "created_at", "changed_at"),
    CheckConstraint("length(text) BETWEEN 1 AND 1000", name="text_is_short"),
    Index("ix_notes_account_id", "account_id", "created_at", "id"),
)

audit_events = Table(  # the audit log: append-only, without content
    "acts",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("at", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),  # the e-mail address of an account, or 'command line'
    Column("act", Text, nullable=False),  # like key.revoke
    Column("account_id", Text, ForeignKey("accounts.id")),  # whom it concerns
    Column("subject", Text, nullable=False),  # the id of what it was done to
    Column("detail", Text, nullable=False),
    Column("token", Text),  # the first characters of the access token that the actor used
    Index("ix_acts_account_id", "account_id", "id"),
    index_where("account_id IS NULL", "ix_acts_service", "subject", "id"),
)

vouchers = Table(
    "vouchers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("digest", LargeBinary(32), nullable=False),
    Column("prefix", Text, nullable=False),
    Column("amount_nano", BigInteger, nullable=False),
    Column("note", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    *(Column(name, BigInteger) for name in ("expires_at", "redeemed_at")),
    Column("redeemed_by", Text, ForeignKey("accounts.id")),
    Column("credit_days", Integer),  # how long its credit lasts once it is redeemed; null: it does not expire
    CheckConstraint("amount_nano > 0", name="amount_is_positive"),
    CheckConstraint("(redeemed_at IS NULL) = (redeemed_by IS NULL)", name="redeemed_has_an_owner"),
    Index("uq_vouchers_digest", "digest", unique=True),
)

payments = Table(
    "payments",
    metadata,
    Column("id", Text, primary_key=True),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    Column("provider", Text, nullable=False),
    Column("checkout", Text, nullable=False),  # the provider's id of the checkout
    Column("reference", Text),  # the provider's id of the payment itself, once it is known
    Column("amount_nano", BigInteger, nullable=False),
    Column("returned_nano", BigInteger, nullable=False, server_default=text("0")),  # by refunds and lost disputes
    Column("state", Text, nullable=False),
    *required(BigInteger, "created_at", "changed_at"),
    CheckConstraint("state IN ('open', 'paid', 'returned', 'disputed', 'expired')", name="state_is_known"),
    CheckConstraint("amount_nano > 0", name="amount_is_positive"),
    CheckConstraint("returned_nano BETWEEN 0 AND amount_nano", name="returned_is_part_of_amount"),
    Index("uq_payments_checkout", "checkout", unique=True),
    Index("ix_payments_reference", "reference"),
    Index("ix_payments_account_id", "account_id"),
    Index("ix_payments_created_at", "created_at"),
)

payment_events = Table(  # the provider's events that were acted on: each is acted on once
    "payment_events",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)

debts = Table(  # credit to be taken back that was held or spent; ended holds and later credit pay it first
    "debts",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    Column("source", Text, nullable=False),  # the refund, dispute or correction, which leaves one debt
    Column("note", Text, nullable=False),
    Column("amount_nano", BigInteger, nullable=False),
    Column("left_nano", BigInteger, nullable=False),  # what is not paid yet
    Column("created_at", BigInteger, nullable=False),
    CheckConstraint("left_nano BETWEEN 0 AND amount_nano", name="left_is_part_of_amount"),
    Index("ix_debts_account_id", "account_id", "id"),
    Index("uq_debts_source", "source", unique=True),
)

credit_lots = Table(  # what is left of each grant, of accounts with granted credit that expires: ledger/lots.py
    "credit_lots",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    Column("note", Text, nullable=False),
    Column("amount_nano", BigInteger, nullable=False),
    Column("left_nano", BigInteger, nullable=False),  # when a lot of the account was last added or expired
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),  # null: it does not expire
    Column("ended_at", BigInteger),  # when nothing was left
    CheckConstraint("left_nano BETWEEN 0 AND amount_nano", name="left_is_part_of_amount"),
    index_where("ended_at IS NULL", "ix_credit_lots_account_id", "account_id"),
    index_where("ended_at IS NULL", "ix_credit_lots_expires_at", "expires_at"),
)

documents = Table(  # receipts, statements and credit notes, as they were issued; nothing in them changes
    "documents",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("ordinal", BigInteger, primary_key=True, autoincrement=False),  # from 1 in each kind, without gaps
    Column("number", Text, nullable=False),  # as it is written on the document
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    Column("subject", Text, nullable=False),  # what it is about: ledger/documents.py
    Column("payment_id", Text, ForeignKey("payments.id")),
    *required(BigInteger, "issued_at", "amount_nano"),
    Column("facts", Text, nullable=False),  # JSON: core/documents.py
    Column("digest", LargeBinary(32), nullable=False),  # of the facts
    CheckConstraint("kind IN ('receipt', 'statement', 'credit-note')", name="kind_is_known"),
    CheckConstraint("ordinal > 0", name="ordinal_is_positive"),
    Index("uq_documents_subject", "account_id", "kind", "subject", unique=True),
    Index("uq_documents_number", "number", unique=True),
)

document_counters = Table(  # the last document of each kind
    "document_counters",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("ordinal", BigInteger, nullable=False),
    Column("through", Text),  # of statements: the last month in which all accounts have theirs, like 2026-10
)

buyers = Table(  # what the owner of an account wants to be called on documents
    "buyers",
    metadata,
    Column("account_id", Text, ForeignKey("accounts.id"), primary_key=True),
    *required(Text, "name", "address", "tax_id"),
)

closed_months = Table(  # a month is sealed before it is closed: from then on no entry is dated in it
    "closed_months",
    metadata,
    Column("month", Text, primary_key=True),  # like 2026-10
    *required(BigInteger, "starts_at", "ends_at", "sealed_at"),
    Column("closed_at", BigInteger),  # it and the rest are null until the month is closed
    Column("first_open_id", BigInteger),  # the entries before this one are of closed months
    *(Column(name, BigInteger) for name in ("accounts", "entries", "requests")),
    *(Column(f"{name}_nano", BigInteger) for name in ("opening", "opening_granted", "closing", "closing_granted")),
    Column("sums", Text),  # JSON: ledger/months.py
    Column("hash", LargeBinary(32)),  # of its entries, and of the hash of the month before
    CheckConstraint("(hash IS NULL) = (closed_at IS NULL)", name="closed_has_a_hash"),
    Index("uq_closed_months_ends_at", "ends_at", unique=True),
)

closed_balances = Table(  # of each account that had an entry before the end of the month
    "closed_balances",
    metadata,
    Column("month", Text, ForeignKey("closed_months.month"), primary_key=True),
    Column("account_id", Text, ForeignKey("accounts.id"), primary_key=True),
    Column("balance_nano", BigInteger, nullable=False),
    Column("granted_nano", BigInteger, nullable=False),  # of the balance
)

command_references = Table(  # idempotent commands that were carried out
    "command_references",
    metadata,
    Column("digest", LargeBinary(32), primary_key=True),  # of the reference and its user
    Column("action", Text, nullable=False),  # like credit.grant
    Column("arguments_digest", LargeBinary(32), nullable=False),  # a repetition has the same arguments
    Column("subject", Text, nullable=False),  # the id of what it created
    Column("at", BigInteger, nullable=False),
)

upstream_attempts = Table(  # requests to providers that no metering row has, or has otherwise: core/attempts.py
    "upstream_attempts",
    metadata,
    Column("day", Integer, primary_key=True, autoincrement=False),  # since the epoch
    Column("provider", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),  # as far as they are known
    Column("completion_tokens", BigInteger, nullable=False),
)

request_details = Table(  # of requests that were not plain, for a few days: observe/details.py
    "request_details",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("request_id", Text, nullable=False),
    Column("completion_id", Text),  # where credit was held
    *required(Text, "account_id", "key_id", "endpoint", "class_id"),
    Column("version", Integer),
    *required(Text, "provider", "model"),
    Column("status", Integer, nullable=False),
    *required(Text, "cause", "fault"),
    Column("is_charged", Boolean, nullable=False),  # it has an entry, though maybe of nothing
    *required(BigInteger, "ended_at", "duration_ms"),
    *(Column(f"{name}_ms", BigInteger) for name in ("first_byte", "held", "answered", "settle")),
    Column("steps", Text, nullable=False),  # JSON: a list of RequestStep
    *(Index(f"ix_request_details_{name}", name) for name in ("request_id", "completion_id", "account_id", "ended_at")),
)
