"""A large store on SQLite or Postgres: accounts with a key each, and a long ledger, added to a migrated schema.

The sums are right, so that `cadenza ledger check` holds. Requests are spread over all accounts in turn, but every
fourth one belongs to the first account. Of the keys, `known` have a secret that is known and can be used.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from functools import partial

from sqlalchemy import text

from cadenza.core.codes import digest_key, display_prefix, make_key
from cadenza.core.spans import DAY_MS, Span
from cadenza.ledger.day_sums import ON_CONFLICT
from cadenza.store.address import open_store
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction
from cadenza.store.tables.metered import KEY, OF_REQUEST, SUMS

SAMPLE = 1000
GRANT_NANO = 10**12
YEAR_MS = 365 * DAY_MS
EVERY_MS = YEAR_MS // 10_000_000  # between requests
BATCH = 100_000
WAIT_S = 600.0
FIRST_ACCOUNT = 100_000_000  # so that all ids have the same length
Row = dict[str, str | int | bytes]
ADDED = [f"SUM({sql})" for sql in SUMS.values()]
ADD_ACCOUNT = Statement(
    text("""
    INSERT INTO accounts (id, email, password_hash, preferred_class, balance_nano, held_nano, created_at)
    VALUES (:id, :email, '', 'forte', :nano, 0, :at)""")
)
ADD_KEY = Statement(
    text("""
    INSERT INTO keys (id, account_id, name, prefix, digest, scopes, created_at)
    VALUES (:key, :id, 'bench', :prefix, :digest, '', :at)""")
)
ADD_GRANT = Statement(
    text("""
    INSERT INTO entries (account_id, kind, amount_nano, note, created_at, granted_nano, origin)
    VALUES (:id, 'grant', :nano, 'bench', :at, 0, 'payment')""")
)
ADD_USAGES = Statement(
    text("""
    WITH RECURSIVE new (number) AS
        (SELECT CAST(:first AS BIGINT) UNION ALL SELECT number + 1 FROM new WHERE number + 1 < :end),
    owned AS (
        SELECT number, :since + number * :every AS at_ms, 10 + number % 500 AS counted,
        CAST(100000000 + CASE number % 4 WHEN 0 THEN 0 ELSE number % :accounts END AS TEXT) AS owner FROM new)
    INSERT INTO usage (completion_id, account_id, key_id, class_id, provider, model, prompt_tokens, cached_tokens,
        completion_tokens, cost_nano, estimated, status, stream, started_at, first_byte_ms, duration_ms, request_id,
        input_nano, output_nano, held_nano, short_nano, source, version)
    SELECT 'chatcmpl-bench-' || CAST(1000000000000 + number AS TEXT), 'acct_bench_' || owner, 'key_bench_' || owner,
        'forte', 'bench', 'bench-model', 100, 0, counted, 100 * 107 + counted * 345, :no, 200, :no, at_ms, 300, 2000,
        'req-bench-' || CAST(1000000000000 + number AS TEXT), 107, 345, 300000, 0, 'reply', 1
    FROM owned""")
)
ADD_CHARGES = Statement(
    text("""
    INSERT INTO entries (account_id, kind, amount_nano, completion_id, note, created_at, granted_nano)
    SELECT account_id, 'charge', -cost_nano, completion_id, '', started_at + 2000, 0 FROM usage
    WHERE completion_id >= 'chatcmpl-bench-' || CAST(1000000000000 + :first AS TEXT)
    AND completion_id < 'chatcmpl-bench-' || CAST(1000000000000 + :end AS TEXT) ORDER BY completion_id""")
)
ADD_DAYS = Statement(
    text(f"""
    INSERT INTO usage_days ({", ".join((*KEY, *SUMS))}) SELECT {", ".join((*OF_REQUEST.values(), *ADDED))} FROM usage
    WHERE completion_id >= 'chatcmpl-bench-' || CAST(1000000000000 + :first AS TEXT)
    AND completion_id < 'chatcmpl-bench-' || CAST(1000000000000 + :end AS TEXT)
    GROUP BY {", ".join(OF_REQUEST.values())} {ON_CONFLICT}""")  # noqa: S608 names of the schema
)
PAY = Statement(
    text("""
    UPDATE accounts SET balance_nano = balance_nano + charged.nano
    FROM (SELECT account_id, SUM(amount_nano) AS nano FROM entries WHERE id > :after GROUP BY account_id) charged
    WHERE charged.account_id = accounts.id""")
)
NO_TRIGGERS = Statement(text("SET LOCAL session_replication_role = replica"))  # foreign keys take half of the time
LAST = Statement(text("SELECT COALESCE(MAX(id), 0) FROM entries"))


async def in_store(url: str, work: Callable[[Store], Awaitable[object]]) -> None:
    store = open_store(url, WAIT_S)
    try:
        await work(store)
    finally:
        await store.close()


class BulkStore:
    """Adds to one store, whose service is not running."""

    def __init__(self, url: str, known: int = SAMPLE) -> None:
        self.accounts = 0
        self.charges = 0
        self.secrets: list[str] = []
        self._url = url
        self._known = known
        self._since_ms = time.time_ns() // 1_000_000 - YEAR_MS

    @property
    def month(self) -> Span:
        """The first 30 days of the charges."""
        return Span(self._since_ms, self._since_ms + 30 * DAY_MS)

    def grow_accounts(self, accounts: int) -> None:
        """Add accounts up to this number, each with one key and a grant. The known keys are spread over all of them."""
        added = range(self.accounts, accounts)
        known = {number: make_key() for number in added[:: max(1, len(added) // self._known)]}
        self.secrets += known.values()
        rows = [self._row(number, known.get(number)) for number in added]
        asyncio.run(self._add_accounts(rows))
        self.accounts = max(accounts, self.accounts)

    def grow_charges(self, charges: int) -> None:
        """Add charged requests up to this number, oldest first."""
        asyncio.run(self._add_charges(range(self.charges, charges)))
        self.charges = max(charges, self.charges)

    async def _add_accounts(self, rows: list[Row]) -> None:
        def add(tx: Transaction) -> None:
            for statement in (ADD_ACCOUNT, ADD_KEY, ADD_GRANT):
                tx.change_each(statement, rows)

        await in_store(self._url, lambda store: store.transact(add))

    async def _add_charges(self, new: range) -> None:
        values = {"since": self._since_ms, "every": EVERY_MS, "accounts": self.accounts, "no": False}

        def add(tx: Transaction, part: range) -> None:
            if tx.combines_changes:  # on Postgres
                tx.change(NO_TRIGGERS, {})
            found = tx.row(LAST, {})
            assert found
            ends = {"first": part.start, "end": part.stop}
            tx.change(ADD_USAGES, values | ends)
            tx.change(ADD_CHARGES, ends)
            tx.change(ADD_DAYS, ends)
            tx.change(PAY, {"after": found[0]})

        async def add_all(store: Store) -> None:
            for first in new[::BATCH]:
                await store.transact(partial(add, part=range(first, min(first + BATCH, new.stop))))

        await in_store(self._url, add_all)

    def _row(self, number: int, secret: str | None) -> Row:
        return {
            "id": f"acct_bench_{FIRST_ACCOUNT + number}",
            "key": f"key_bench_{FIRST_ACCOUNT + number}",
            "email": f"{number}@example.org",
            "prefix": display_prefix(secret or f"sk-cdz-{number:05d}"),
            "digest": digest_key(secret.encode()) if secret else hashlib.sha256(b"%d" % number).digest(),
            "nano": GRANT_NANO,
            "at": self._since_ms,
        }
