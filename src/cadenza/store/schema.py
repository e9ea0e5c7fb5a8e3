"""The tables of SQLite and Postgres. Times are Unix milliseconds, money is in nano-dollars.

The CHECK constraints hold for every program that writes. new_store.py makes the tables, and the triggers that make
`entries` append-only and keep closed months as they are; migrations bring an older store to the same. A chat has two
ids: `completion_id`, the id of its reply (chatcmpl-…), and `request_id`, the x-request-id of its HTTP request.
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
    Text,
    false,
    text,
    true,
)

from cadenza.store import class_tables
from cadenza.store.columns import (
    INTERNAL,
    PROVIDERS,
    REPLACED,
    SECRET,
    ZERO,
    Exported,
    LeftOut,
    OfService,
    hidden,
    index_where,
    numbered,
    optional,
    required,
    shown,
    table,
)

metadata = class_tables.class_versions.metadata  # of all tables
ERASED_PREFIX = "erased------"
ACCOUNTING = "kept: these are the accounts of a business"
UNTIL_REMOVED = "the owner removes them, or the account is erased"

accounts = table(
    "accounts",
    Exported("account.json", "The account: its address, preferences and balance.", kept="kept", owner="id"),
    Column("id", Text, primary_key=True, info=shown("id of the account")),
    Column("email", Text, nullable=False, unique=True, info=shown("e-mail address", erased=REPLACED)),
    *required(Text, password_hash=hidden(SECRET, erased="")),
    *required(Text, default="forte", preferred_class=shown("the class that `auto` means", erased="forte")),
    *required(BigInteger, default=ZERO, balance_nano="credit", held_nano="the part that running requests hold"),
    *required(BigInteger, created_at="when the account was created"),
    *required(Boolean, default=false(), is_operator=shown("whether it may use the operator's pages", erased=False)),
    *optional(BigInteger, suspended_at=shown("when it was suspended", erased=REPLACED)),
    *optional(BigInteger, verified_at=shown("when a link that was sent to the address was opened", erased=None)),
    *required(Text, default="system", theme=shown("how pages look", erased="system")),
    *required(Boolean, default=true(), uses_search=shown("whether replies may search", erased=True)),
    *required(Boolean, default=true(), uses_memory=shown("whether replies may use notes", erased=True)),
    *required(Boolean, default=false(), has_caps=hidden(INTERNAL)),  # a key of it has a spend cap
    *required(BigInteger, default=text("1000000000"), low_balance_nano=shown("below this, a notice is sent", erased=0)),
    *optional(BigInteger, low_noticed_at=shown("when the last notice was sent", erased=None)),  # null: it rose again
    *required(Integer, default=ZERO, note_count=shown("how many notes there are", erased=0)),
    *optional(BigInteger, erased_at=shown("when it was erased", erased=REPLACED)),
    *required(BigInteger, default=ZERO, debt_nano="what is to be paid back from later credit"),
    *required(BigInteger, default=ZERO, granted_nano="the part of the credit that was not paid for"),
    *required(Boolean, default=false(), shows_cost=shown("whether replies say what they cost", erased=False)),
    *optional(Text, erasing_email=hidden(INTERNAL, erased=REPLACED)),  # its address, while it is erased
    CheckConstraint("email = lower(email)", name="email_is_lower_case"),
    CheckConstraint("preferred_class IN ('mezzo', 'forte', 'fortissimo')", name="preferred_class_is_known"),
    CheckConstraint("held_nano >= 0", name="held_is_not_negative"),
    CheckConstraint("balance_nano - held_nano >= 0", name="balance_covers_held"),
    index_where("erasing_email IS NOT NULL", "ix_accounts_erasing", "id"),
)

keys = table(
    "keys",
    Exported("keys.json", "API keys, without the keys themselves.", kept="kept"),
    Column("id", Text, primary_key=True, info=shown("id of the key")),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    *required(Text, name=shown("its name", erased=""), prefix=shown("its first characters", erased=ERASED_PREFIX)),
    *required(LargeBinary(32), digest=hidden(SECRET, erased=REPLACED)),
    *required(Text, scopes="what it may do; empty: everything"),
    *required(BigInteger, created_at="when it was created"),
    *optional(
        BigInteger,
        expires_at="when it expires",
        revoked_at=shown("when it was revoked", erased=REPLACED),
        last_used_at=shown("when it was last used", erased=None),
    ),
    *optional(Float, requests_per_second="its own rate, if it has one"),
    *optional(Integer, burst="its own burst, if it has one"),
    *required(Text, default="owner", origin="`owner`, or `web` for the key of the web chat"),
    *required(Boolean, default=false(), is_capped="whether it has a spend cap"),
    Column("token", Text, info=shown("the first characters of the access token that created it")),
    CheckConstraint("length(prefix) = 12", name="prefix_has_12_characters"),
    CheckConstraint("length(digest) = 32", name="digest_has_32_bytes"),
    CheckConstraint("expires_at > created_at", name="expires_after_creation"),
    Index("uq_keys_digest", "digest", unique=True),
    Index("ix_keys_account_id", "account_id"),
)

entries = table(
    "entries",
    Exported("statement.csv", "The statement: every change of the balance, oldest first.", kept=ACCOUNTING),
    numbered("number of the entry"),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    *required(Text, kind="`grant`, `charge` or `correction`"),
    *required(BigInteger, amount_nano="what was added; below zero: what was taken"),
    *optional(Text, completion_id="id of the reply that was charged or refunded"),
    *required(Text, note="a note about it"),
    *required(BigInteger, created_at="when it was made"),
    *optional(Text, source="id of the payment, voucher or command"),  # it moves credit once
    *optional(BigInteger, debt_id="number of the debt that it pays"),
    *optional(Text, origin="where it comes from, if it is not a charge"),  # ledger/origins.py
    *required(BigInteger, granted_nano="the part of it that was not paid for"),
    # one by one: for IN, SQLite would build a table in memory with each new entry
    CheckConstraint("kind = 'charge' OR kind = 'grant' OR kind = 'correction'", name="kind_is_known"),
    CheckConstraint("kind <> 'grant' OR amount_nano > 0", name="grant_is_positive"),
    CheckConstraint("kind <> 'charge' OR amount_nano <= 0", name="charge_is_not_positive"),
    CheckConstraint("kind <> 'charge' OR completion_id IS NOT NULL", name="charge_has_request"),
    CheckConstraint("kind = 'charge' OR origin IS NOT NULL", name="others_have_an_origin"),
    Index("ix_entries_account_id", "account_id", "id"),
    index_where("kind = 'charge'", "uq_entries_charge", "completion_id", unique=True),
    index_where("kind = 'correction'", "ix_entries_correction", "completion_id"),
    index_where("source IS NOT NULL", "uq_entries_source", "source", unique=True),
)

processes = table(
    "processes",  # live ones, and dead ones that were not swept yet
    OfService("the serving processes", kept="the process ends"),
    Column("name", Text, primary_key=True),
    Column("beats", BigInteger, nullable=False, server_default=ZERO),  # the heartbeat counter; below zero: fenced
    Column("seen", BigInteger, nullable=False, server_default=ZERO),  # the epoch of changes that it has seen
    *required(Text, "version", "revision", "host"),
    Column("pid", Integer, nullable=False),
)

reserves = table(
    "reserves",  # credit of an account, from which a process takes holds in memory
    LeftOut("credit that running requests hold; account.json has the sum", kept="the request ends"),
    Column("account_id", Text, ForeignKey("accounts.id"), primary_key=True),
    Column("process", Text, ForeignKey("processes.name"), primary_key=True),
    Column("amount_nano", BigInteger, nullable=False),
    Column("has_spare", Boolean, nullable=False),  # more than the requests in flight need
    Column("is_asked", Boolean, nullable=False, server_default=false()),  # another process asks for the spare part
    CheckConstraint("amount_nano >= 0", name="amount_is_not_negative"),
    Index("ix_reserves_process", "process"),
    index_where("is_asked", "ix_reserves_asked", "process"),
)

marks = table(
    "marks",  # what a running request has delivered; it is charged if its process dies
    LeftOut("how far running requests are; usage.csv has them when they end", kept="the request ends"),
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
    Column("version", Integer, nullable=False),  # of its class
    CheckConstraint("prompt_tokens >= 0 AND delivered_tokens > 0", name="tokens_are_counted"),
)

idempotency = table(
    "idempotency",
    LeftOut("hashes of the Idempotency-Key headers of the last 24 hours", kept="24 hours", removed="in batches"),
    Column("account_id", Text, ForeignKey("accounts.id"), primary_key=True),
    Column("digest", LargeBinary(32), primary_key=True),
    *required(Text, "completion_id", "request_id"),
    Column("created_at", BigInteger, nullable=False),
    Column("process", Text),  # while its request runs
    Index("ix_idempotency_created_at", "created_at"),
    Index("ix_idempotency_process", "process"),
)

usage = table(
    "usage",
    Exported(
        "usage.csv",
        "Each request, oldest first. A web search is a request of the class `search` with one prompt token.",
        kept="no limit, or `usage_days`: then only the [sums](months.md#old-requests) are left",
        by="started_at",
    ),
    Column("completion_id", Text, primary_key=True, info=shown("id of the reply")),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    Column("key_id", Text, ForeignKey("keys.id"), nullable=False, info=shown("id of the key")),
    *required(Text, class_id="the class that answered", provider=hidden(PROVIDERS), model=hidden(PROVIDERS)),
    *required(Integer, prompt_tokens="tokens in", cached_tokens="the part of them that was cached"),
    *required(Integer, completion_tokens="tokens out"),
    *required(BigInteger, cost_nano="what the request cost"),
    *required(Boolean, estimated="whether we counted the tokens, not the provider"),
    *required(Integer, status="HTTP status; 499: the client disconnected"),
    *required(Boolean, stream="whether the reply was streamed"),
    *required(BigInteger, started_at="when it began"),
    *optional(BigInteger, first_byte_ms="milliseconds to the first part of the reply"),
    *required(BigInteger, duration_ms="milliseconds to its end"),
    *required(Text, request_id="id of the HTTP request"),
    *required(BigInteger, input_nano="price of a token in", output_nano="price of a token out"),
    *optional(BigInteger, cached_input_nano="price of a cached token; empty: like the others"),
    *optional(BigInteger, held_nano=hidden(INTERNAL)),  # null: a sweep ended it
    *required(BigInteger, short_nano=hidden(INTERNAL)),  # due, but the account could not pay it
    *required(Text, source=hidden(INTERNAL)),  # who ended it: ledger/rules.py
    *optional(LargeBinary(32), idempotency_digest=hidden(SECRET, erased=None)),
    *optional(Integer, version=hidden(PROVIDERS)),  # of the class that served it; null: a web search
    *optional(BigInteger, provider_cost_nano=hidden(PROVIDERS)),  # null: not known
    CheckConstraint("cached_tokens BETWEEN 0 AND prompt_tokens", name="cached_is_part_of_prompt"),
    CheckConstraint("completion_tokens >= 0", name="completion_is_not_negative"),
    CheckConstraint("cost_nano >= 0", name="cost_is_not_negative"),
    Index("ix_usage_account_id", "account_id", "started_at"),
)

usage_days = table(
    "usage_days",  # ledger/day_sums.py: what all requests of a day add up to, whether or not they have a row in usage
    Exported("usage_days.csv", "Requests as sums by day, key and class.", kept="kept"),
    Column("account_id", Text, ForeignKey("accounts.id"), primary_key=True),
    Column("day", BigInteger, primary_key=True, autoincrement=False, info=shown("the day in UTC, in days since 1970")),
    Column("key_id", Text, ForeignKey("keys.id"), primary_key=True, info=shown("id of the key")),
    Column("class_id", Text, primary_key=True, info=shown("the class that answered")),
    Column("provider", Text, primary_key=True, info=hidden(PROVIDERS)),
    Column("model", Text, primary_key=True, info=hidden(PROVIDERS)),
    *required(BigInteger, requests="number of requests", prompt_tokens="tokens in"),
    *required(BigInteger, cached_tokens="the part of them that was cached", completion_tokens="tokens out"),
    *required(BigInteger, cost_nano="what the requests cost"),
    *required(BigInteger, provider_cost_nano=hidden(PROVIDERS)),  # as far as it is known
    *required(BigInteger, failed_requests="those that failed because of the service or a provider"),
    *required(BigInteger, counted_requests="those with tokens"),
    *required(BigInteger, broken_requests="those of them that broke off"),
    *required(BigInteger, estimated_requests="those of them whose tokens we counted, not the provider"),
    *required(BigInteger, uncosted_requests=hidden(PROVIDERS), uncosted_nano=hidden(PROVIDERS)),
    CheckConstraint("requests >= 0 AND cost_nano >= 0", name="sums_are_not_negative"),
    Index("ix_usage_days_day", "day"),
    Index("ix_usage_days_key_id", "key_id", "day"),
)

retention = table(
    "retention",  # what its limits have removed
    OfService("how far the limits of `[retention]` have come", kept="kept"),
    Column("name", Text, primary_key=True),  # what is kept: control/retention_keeper.py
    Column("kept_from", BigInteger),  # what is older is gone, or will be soon
    Column("worked_at", BigInteger, nullable=False),  # when a process last worked on it
)

epochs = table(
    "epochs",
    OfService("counters that tell processes when to read something again", kept="kept"),
    Column("name", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
)

caps = table(
    "caps",
    Exported("key_caps.json", "Spend caps of keys.", kept="kept"),
    Column("key_id", Text, ForeignKey("keys.id"), primary_key=True, info=shown("id of the key")),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    *required(Text, period="`month` or `total`"),
    *required(BigInteger, limit_nano="the most that it may spend"),
    *required(Integer, month="the month that `spent` is of, like 202611; 0 for all time"),
    *required(BigInteger, spent_nano="what it has spent of it"),
    *required(BigInteger, excused_nano=hidden(INTERNAL)),  # beyond the limit, by requests that ran before it
    CheckConstraint("period IN ('total', 'month')", name="period_is_known"),
    CheckConstraint("limit_nano >= 0 AND spent_nano >= 0 AND excused_nano >= 0", name="money_is_not_negative"),
    CheckConstraint("spent_nano - limit_nano <= excused_nano", name="spent_is_within_limit"),
    Index("ix_caps_account_id", "account_id"),
)

cap_holds = table(
    "cap_holds",  # by the process that serves them
    LeftOut("what running requests of a key with a spend cap hold", kept="the request ends"),
    Column("key_id", Text, ForeignKey("keys.id"), primary_key=True),
    Column("process", Text, ForeignKey("processes.name"), primary_key=True),
    Column("amount_nano", BigInteger, nullable=False),
    CheckConstraint("amount_nano >= 0", name="amount_is_not_negative"),
    Index("ix_cap_holds_process", "process"),
)

sessions = table(
    "sessions",
    Exported(
        "sessions.json",
        "Signed-in browsers.",
        kept="sign-out; `session_idle_days`, 7 days, without use; `session_days`, 30 days, in any case",
        removed="at once",
    ),
    Column("digest", LargeBinary(32), primary_key=True, info=hidden(SECRET)),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    *required(Text, stage="`complete`, or `second_factor` while that is missing"),
    *required(Text, agent="the browser, as it names itself"),
    *required(BigInteger, created_at="when it signed in", used_at="when it was last used"),
    *required(BigInteger, proved_at="when the password or a second factor was last given"),
    *required(BigInteger, expires_at="when it ends at the latest"),
    CheckConstraint("stage IN ('second_factor', 'complete')", name="stage_is_known"),
    Index("ix_sessions_account_id", "account_id"),
    Index("ix_sessions_expires_at", "expires_at"),
)

access_tokens = table(
    "access_tokens",
    Exported(
        "access_tokens.json",
        "Access tokens for the platform API, without the tokens themselves.",
        kept="the account is erased",
        removed="in batches",
    ),
    Column("id", Text, primary_key=True, info=shown("id of the token")),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    *required(Text, name="its name", prefix="its first characters"),
    *required(LargeBinary(32), digest=hidden(SECRET)),
    *required(Text, scopes="what it may do"),
    *required(BigInteger, created_at="when it was created", expires_at="when it expires"),
    *optional(BigInteger, revoked_at="when it was revoked", last_used_at="when it was last used"),
    CheckConstraint("length(digest) = 32", name="digest_has_32_bytes"),
    CheckConstraint("length(scopes) > 0", name="scopes_are_named"),
    CheckConstraint("expires_at > created_at", name="expires_after_creation"),
    Index("uq_access_tokens_digest", "digest", unique=True),
    Index("ix_access_tokens_account_id", "account_id"),
)

links = table(
    "links",
    Exported(
        "links.json",
        "Links in e-mails that were not used yet.",
        kept="it is used or replaced, or has expired: an hour (password), a day (new address), 3 days (verification), "
        "7 days (invitation)",
        removed="at once",
    ),
    Column("digest", LargeBinary(32), primary_key=True, info=hidden(SECRET)),
    *required(Text, kind="what the link does"),
    Column("account_id", Text, ForeignKey("accounts.id")),  # none for an invitation
    *required(Text, email="the address that it was sent to"),  # empty for an open invitation
    *required(BigInteger, created_at="when it was made", expires_at="until when it works"),
    CheckConstraint("kind IN ('verify', 'reset', 'change_email', 'invite')", name="kind_is_known"),
    Index("ix_links_account_id", "account_id"),
)

totp = table(
    "totp",
    Exported("authenticator_app.json", "The authenticator app.", kept=UNTIL_REMOVED, removed="at once"),
    Column("account_id", Text, ForeignKey("accounts.id"), primary_key=True),
    *required(LargeBinary, secret=hidden(SECRET)),
    *required(BigInteger, default=ZERO, last_step=hidden(SECRET)),  # a code is accepted once
    *optional(BigInteger, confirmed_at="when it was added; null: it is not in use yet"),
)

recovery_codes = table(
    "recovery_codes",
    LeftOut("hashes of the codes; account pages say how many are left", kept=UNTIL_REMOVED, removed="at once"),
    Column("account_id", Text, ForeignKey("accounts.id"), primary_key=True),
    Column("digest", LargeBinary(32), primary_key=True),
)

passkeys = table(
    "passkeys",
    Exported("passkeys.json", "Passkeys.", kept=UNTIL_REMOVED, removed="at once"),
    Column("id", LargeBinary, primary_key=True, info=hidden(SECRET)),  # the credential id
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    *required(Text, name="its name"),
    *required(LargeBinary, public_key=hidden(SECRET)),
    *required(BigInteger, sign_count="how often it was used, if the device counts", created_at="when it was added"),
    *optional(BigInteger, last_used_at="when it was last used"),
    Index("ix_passkeys_account_id", "account_id"),
)

site_secrets = table(
    "site_secrets",
    OfService("random keys that the site signs with, the same in every process", kept="kept"),
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary(32), nullable=False),
)

notes = table(
    "notes",
    Exported(
        "notes.json",
        "Notes: what replies should know.",
        kept="the owner deletes them, or the account is erased",
        removed="at once",
    ),
    Column("id", Text, primary_key=True, info=shown("id of the note")),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    *required(Text, text="its text"),
    *required(BigInteger, created_at="when it was written", changed_at="when it was last changed"),
    CheckConstraint("length(text) BETWEEN 1 AND 1000", name="text_is_short"),
    Index("ix_notes_account_id", "account_id", "created_at", "id"),
)

audit_events = table(
    "audit_events",
    Exported(
        "audit_events.json",
        "What was done to the account, and by whom.",
        kept="no limit, or `audit_event_days`; events of classes and of the ledger, with the operator's address, stay",
    ),
    numbered("number of the event"),
    *required(BigInteger, at="when it was done"),
    *required(
        Text,
        actor=shown("who did it: an address, the id of the account, `an operator`, or `command line`", erased=REPLACED),
    ),
    *required(Text, event="what was done"),  # like key.revoke
    Column("account_id", Text, ForeignKey("accounts.id")),  # whom it concerns
    *required(Text, subject="the id of what it was done to", detail=shown("more about it", erased="")),
    Column("token", Text, info=shown("the first characters of the access token that was used")),
    Index("ix_audit_events_account_id", "account_id", "id"),
    index_where("account_id IS NULL", "ix_audit_events_service", "subject", "id"),
)

vouchers = table(
    "vouchers",
    Exported("vouchers.json", "Vouchers that were redeemed.", kept="kept", owner="redeemed_by"),
    Column("id", Text, primary_key=True, info=shown("id of the voucher")),
    *required(LargeBinary(32), digest=hidden(SECRET)),
    *required(Text, prefix="its first characters"),
    *required(BigInteger, amount_nano="its credit"),
    *required(Text, note=hidden("a note of the operator")),
    *required(BigInteger, created_at=hidden("from before it was redeemed, when it belonged to no account")),
    *optional(
        BigInteger,
        expires_at=hidden("it no longer applies: the voucher was redeemed in time"),
        redeemed_at="when it was redeemed",
    ),
    Column("redeemed_by", Text, ForeignKey("accounts.id")),
    *optional(Integer, credit_days="after how many days its credit expires; null: never"),
    CheckConstraint("amount_nano > 0", name="amount_is_positive"),
    CheckConstraint("(redeemed_at IS NULL) = (redeemed_by IS NULL)", name="redeemed_has_an_owner"),
    Index("uq_vouchers_digest", "digest", unique=True),
)

payments = table(
    "payments",
    Exported("payments.json", "Payments by card and by bank transfer.", kept="kept"),
    Column("id", Text, primary_key=True, info=shown("id of the payment")),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    *required(Text, provider="who takes the payment, or `transfer`", checkout="the provider's id of the checkout"),
    *optional(Text, reference="the provider's id of the payment, or the reference of the transfer"),
    *required(BigInteger, amount_nano="what was paid"),
    *required(BigInteger, default=ZERO, returned_nano="what was returned of it, by refunds and lost disputes"),
    *required(Text, state="its state"),
    *required(BigInteger, created_at="when it was begun", changed_at="when its state last changed"),
    *required(BigInteger, default=ZERO, refunded_nano="what was refunded of it"),
    *required(BigInteger, default=ZERO, lost_nano="what lost disputes took of it"),
    *required(BigInteger, default=ZERO, disputed_nano="what open disputes are about"),
    CheckConstraint("state IN ('open', 'paid', 'returned', 'disputed', 'expired')", name="state_is_known"),
    CheckConstraint("amount_nano > 0", name="amount_is_positive"),
    CheckConstraint("returned_nano BETWEEN 0 AND amount_nano", name="returned_is_part_of_amount"),
    Index("uq_payments_checkout", "checkout", unique=True),
    Index("ix_payments_reference", "reference"),
    Index("ix_payments_account_id", "account_id"),
    Index("ix_payments_created_at", "created_at"),
)

payment_events = table(
    "payment_events",
    OfService("the payment provider's events, so that each is acted on once, in whatever order they come", kept="kept"),
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    *optional(Text, "reference", "fact"),  # of refunds and disputes: the provider's id of the payment, and JSON
    *optional(BigInteger, "happened_at"),
    Index("ix_payment_events_reference", "reference"),
)

debts = table(
    "debts",
    Exported("debts.json", "Credit that was to be taken back and was already spent.", kept=ACCOUNTING),
    numbered("number of the debt"),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    *required(Text, source="the refund, dispute or correction"),  # it leaves one debt
    *required(Text, note="a note about it"),
    *required(BigInteger, amount_nano="the debt", left_nano="what is not paid yet", created_at="when it was made"),
    CheckConstraint("left_nano BETWEEN 0 AND amount_nano", name="left_is_part_of_amount"),
    Index("ix_debts_account_id", "account_id", "id"),
    Index("uq_debts_source", "source", unique=True),
)

credit_lots = table(
    "credit_lots",
    Exported("credit_lots.json", "What is left of granted credit, if some of it expires.", kept=ACCOUNTING),
    numbered("number of the grant"),
    Column("account_id", Text, ForeignKey("accounts.id"), nullable=False),
    *required(Text, note="a note about it"),
    *required(BigInteger, amount_nano="what was granted"),
    *required(BigInteger, left_nano="what was left when a grant was last added or expired"),
    *required(BigInteger, created_at="when it was granted"),
    *optional(BigInteger, expires_at="when the rest expires", ended_at="when nothing was left"),
    CheckConstraint("left_nano BETWEEN 0 AND amount_nano", name="left_is_part_of_amount"),
    index_where("ended_at IS NULL", "ix_credit_lots_account_id", "account_id"),
    index_where("ended_at IS NULL", "ix_credit_lots_expires_at", "expires_at"),
)

closed_months = table(
    "closed_months",  # a month is sealed before it is closed: from then on no entry is dated in it
    OfService("sums of closed months", kept="kept"),
    Column("month", Text, primary_key=True),  # like 2026-10
    *required(BigInteger, "starts_at", "ends_at", "sealed_at"),
    Column("closed_at", BigInteger),  # it and the rest are null until the month is closed
    Column("first_open_id", BigInteger),  # the entries before this one are of closed months
    *optional(BigInteger, "accounts", "entries", "requests"),
    *optional(BigInteger, "opening_nano", "opening_granted_nano", "closing_nano", "closing_granted_nano"),
    Column("sums", Text),  # JSON: ledger/months.py
    Column("hash", LargeBinary(32)),  # of its entries, and of the hash of the month before
    CheckConstraint("(hash IS NULL) = (closed_at IS NULL)", name="closed_has_a_hash"),
    Index("uq_closed_months_ends_at", "ends_at", unique=True),
)

closed_balances = table(
    "closed_balances",
    Exported("closed_balances.json", "The balance at the end of each month that was closed.", kept="kept"),
    Column("month", Text, ForeignKey("closed_months.month"), primary_key=True, info=shown("the month")),
    Column("account_id", Text, ForeignKey("accounts.id"), primary_key=True),
    *required(BigInteger, balance_nano="the balance at its end", granted_nano="the part of it that was not paid for"),
)

command_references = table(
    "command_references",
    OfService("hashes of the references of commands, so that none is carried out twice", kept="kept"),
    Column("digest", LargeBinary(32), primary_key=True),  # of the reference and its user
    Column("action", Text, nullable=False),  # like credit.grant
    Column("arguments_digest", LargeBinary(32), nullable=False),  # a repetition has the same arguments
    Column("subject", Text, nullable=False),  # the id of what it created
    Column("at", BigInteger, nullable=False),
)

upstream_attempts = table(
    "upstream_attempts",  # that no metering row has, or has otherwise: core/attempts.py
    OfService("requests to providers, counted by day", kept="kept"),
    Column("day", Integer, primary_key=True, autoincrement=False),  # since the epoch
    Column("provider", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    *required(BigInteger, "requests", "prompt_tokens", "completion_tokens"),  # tokens as far as they are known
)

request_details = table(
    "request_details",  # observe/details.py
    Exported(
        "request_details.csv",
        "Requests of the last days that were refused, failed, retried, slow or grounded.",
        kept="3 days",
        removed="in batches",
    ),
    numbered(hidden(INTERNAL)),
    *required(Text, request_id="id of the HTTP request"),
    *optional(Text, completion_id="id of the reply, if credit was held for it"),
    *required(Text, "account_id", key_id="id of the key", endpoint="what was asked for", class_id="the class"),
    *optional(Integer, version=hidden(PROVIDERS)),
    *required(Text, provider=hidden(PROVIDERS), model=hidden(PROVIDERS)),
    *required(Integer, status="HTTP status"),
    *required(Text, cause="why it is here", fault="what went wrong"),
    *required(Boolean, is_charged="whether it is on the statement"),
    *required(BigInteger, ended_at="when it ended", duration_ms="milliseconds to its end"),
    *optional(BigInteger, first_byte_ms="milliseconds to the first part of the reply"),
    *optional(BigInteger, held_ms=hidden(INTERNAL), answered_ms=hidden(INTERNAL), settle_ms=hidden(INTERNAL)),
    *required(Text, steps=hidden(PROVIDERS)),  # JSON: a list of RequestStep
    *(Index(f"ix_request_details_{name}", name) for name in ("request_id", "completion_id", "account_id", "ended_at")),
)
