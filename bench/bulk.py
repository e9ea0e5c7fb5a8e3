"""A large store, made by bulk inserts into the schema that `cadenza migrate` makes: accounts, keys and a long ledger.

The sums are right: each charge has its settled hold and its metering row, and each balance is the sum of its entries,
so that `cadenza ledger check` holds. Of the keys, SAMPLE have a secret that is known and can be used.
"""

import contextlib
import hashlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from cadenza.core.codes import digest_key, display_prefix, make_key

SAMPLE = 1000
GRANT_NANO = 10**15
CHARGE_NANO = 50_000
DAY_MS = 24 * 60 * 60 * 1000
SPAN_MS = 30 * DAY_MS
CACHE_KB = 512 * 1024
FAST = (
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    "PRAGMA temp_store = MEMORY",
    f"PRAGMA cache_size = -{CACHE_KB}",
)
ADD_ACCOUNT = (
    "INSERT INTO accounts (id, email, password_hash, preferred_class, balance_nano, held_nano, created_at)"
    " VALUES (?, ?, '', 'forte', ?, 0, ?)"
)
ADD_KEY = (
    "INSERT INTO keys (id, account_id, name, prefix, digest, scopes, created_at) VALUES (?, ?, 'bench', ?, ?, '', ?)"
)
ADD_GRANT = "INSERT INTO entries (account_id, kind, amount_nano, note, created_at) VALUES (?, 'grant', ?, 'bench', ?)"
ADD_HOLDS = """
    WITH RECURSIVE new (number) AS
        (SELECT :first UNION ALL SELECT number + 1 FROM new WHERE number < :last),
    owned AS
        (SELECT number, (number - :first) / :per_account AS owner, :since_ms + number % :span_ms AS at_ms FROM new)
    INSERT INTO holds (completion_id, account_id, key_id, class_id, owner, state, amount_nano, prompt_tokens,
        delivered_tokens, input_nano, output_nano, stream, started_at, ended_at)
    SELECT printf('chatcmpl-bench-%012d', number), printf('acct_bench_%08d', owner), printf('key_bench_%08d', owner),
        'forte', 'bench', 'settled', :amount_nano, 60, 0, 1, 1, 0, at_ms, at_ms + 2 FROM owned"""
ADD_CHARGES = (
    "INSERT INTO entries (account_id, kind, amount_nano, completion_id, note, created_at)"
    " SELECT account_id, 'charge', -amount_nano, completion_id, '', ended_at FROM holds"
    " WHERE completion_id BETWEEN ? AND ?"
)
ADD_USAGES = (
    "INSERT INTO usage (completion_id, account_id, key_id, class_id, provider, model, prompt_tokens, cached_tokens,"
    " completion_tokens, cost_nano, estimated, status, stream, started_at, first_byte_ms, duration_ms)"
    " SELECT completion_id, account_id, key_id, class_id, 'bench', 'bench', prompt_tokens, 0, 8, amount_nano, 0, 200,"
    " stream, started_at, 1, 2 FROM holds WHERE completion_id BETWEEN ? AND ?"
)
PAY = "UPDATE accounts SET balance_nano = balance_nano - ? WHERE id = ?"


class BulkStore:
    """Adds to one store, whose service is not running."""

    def __init__(self, path: Path) -> None:
        self.accounts = 0
        self.charges = 0
        self.secrets: list[str] = []
        self._path = path
        self._since_ms = time.time_ns() // 1_000_000 - SPAN_MS

    def grow_accounts(self, accounts: int) -> None:
        """Up to so many accounts, each with one key and a grant. The known keys are spread over all of them."""
        added = range(self.accounts, accounts)
        known = {number: make_key() for number in added[:: max(1, len(added) // SAMPLE)]}
        self.secrets += known.values()
        with self._open() as store:
            store.executemany(
                ADD_ACCOUNT, ((_account(n), f"{n}@example.org", GRANT_NANO, self._since_ms) for n in added)
            )
            store.executemany(ADD_GRANT, ((_account(n), GRANT_NANO, self._since_ms) for n in added))
            store.executemany(ADD_KEY, (self._key_row(n, known.get(n)) for n in added))
        self.accounts = max(accounts, self.accounts)

    def grow_charges(self, charges: int) -> None:
        """Up to so many charged requests, an equal number for each account, oldest first."""
        new = range(self.charges, charges)
        if not new:
            return
        spread = min(self.accounts, len(new))
        per_account = -(-len(new) // spread)
        with self._open() as store:
            store.execute(ADD_HOLDS, self._about(new, per_account))
            ends = (_request(new[0]), _request(new[-1]))
            store.execute(ADD_USAGES, ends)
            store.execute(ADD_CHARGES, ends)
            owed = ((n, len(new[n * per_account : (n + 1) * per_account])) for n in range(spread))
            store.executemany(PAY, ((CHARGE_NANO * count, _account(n)) for n, count in owed))
        self.charges = charges

    def _key_row(self, number: int, secret: str | None) -> tuple[str, str, str, bytes, int]:
        digest = digest_key(secret.encode()) if secret else hashlib.sha256(b"%d" % number).digest()
        prefix = display_prefix(secret or f"sk-cdz-{number:05d}")
        return f"key_bench_{number:08d}", _account(number), prefix, digest, self._since_ms

    def _about(self, new: range, per_account: int) -> dict[str, int]:
        return {
            "first": new[0],
            "last": new[-1],
            "per_account": per_account,
            "since_ms": self._since_ms,
            "span_ms": SPAN_MS,
            "amount_nano": CHARGE_NANO,
        }

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """One big transaction, with nothing to protect: a store that was cut off here is thrown away."""
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as store:
            for pragma in FAST:
                store.execute(pragma)
            store.execute("BEGIN")
            yield store
            store.execute("COMMIT")
            store.execute("PRAGMA journal_mode = WAL")


def _account(number: int) -> str:
    return f"acct_bench_{number:08d}"


def _request(number: int) -> str:
    return f"chatcmpl-bench-{number:012d}"
