"""Work on many rows, on both databases: no transaction changes more than ROWS_MAX, and what is cut off is continued."""

import contextlib
import io
import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from sqlalchemy import text

from cadenza.control.account.erasure import begin_erasure, erase_account, finish_erasures
from cadenza.control.retention_keeper import RetentionKeeper
from cadenza.core.records import COMMAND_LINE, Operator
from cadenza.core.retention_limits import RetentionLimits
from cadenza.core.spans import DAY_MS
from cadenza.ledger import idempotency_keys
from cadenza.observe import make_log
from cadenza.parts.site.tables import links, sessions
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.statements import Statement, Values
from cadenza.store.store import Row, Store, Transaction
from cadenza.store.tables import audit_events, request_details
from cadenza.store.tables.metered import first_id
from tests.store.moves import findings
from tests.store.rows import NOW_MS, add_account, add_key, run_sql, sum_up

T = TypeVar("T")

MANY = 600
ROWS_MAX = 250
LATER_MS = NOW_MS + 90 * DAY_MS
OWNER, EMAIL = "acct_a", "acct_a@example.org"
LIMITS = RetentionLimits(audit_event_days=30, usage_days=30)
LARGE = {
    *[
        "accounts",
        "usage",
        "entries",
        "audit_events",
        "sessions",
        "idempotency",
        "request_details",
        "keys",
        "access_tokens",
    ]
}
LEFT = {  # what an erased account must not have
    "keys": "SELECT COUNT(*) FROM keys WHERE account_id = 'acct_a' AND name <> ''",
    "tokens": "SELECT COUNT(*) FROM access_tokens WHERE account_id = 'acct_a'",
    "own events": """SELECT COUNT(*) FROM audit_events
        WHERE account_id = 'acct_a' AND event <> 'account.erase' AND detail <> ''""",
    "events": f"SELECT COUNT(*) FROM audit_events WHERE actor = '{EMAIL}'",
    "idempotency keys": "SELECT COUNT(*) FROM idempotency WHERE account_id = 'acct_a'",
    "details": "SELECT COUNT(*) FROM request_details WHERE account_id = 'acct_a'",
    "digests": "SELECT COUNT(*) FROM usage WHERE idempotency_digest IS NOT NULL",
    "addresses": f"SELECT COUNT(*) FROM accounts WHERE email = '{EMAIL}' OR erasing_email IS NOT NULL",
}


class Killed(BaseException):
    """The process ended between two transactions."""


class CountingTransaction:
    """Counts the rows that a transaction changes, and notes its statements."""

    def __init__(self, tx: Transaction, statements: set[Statement]) -> None:
        self._tx = tx
        self._statements = statements
        self.rows_changed = 0

    def row(self, statement: Statement, values: Values) -> Row | None:
        self._statements.add(statement)
        return self._tx.row(statement, values)

    def rows(self, statement: Statement, values: Values) -> list[Row]:
        self._statements.add(statement)
        return self._tx.rows(statement, values)

    def change(self, statement: Statement, values: Values) -> int:
        self._statements.add(statement)
        count = self._tx.change(statement, values)
        self.rows_changed += max(count, 0)
        return count

    def change_each(self, statement: Statement, values: list[Values]) -> None:
        self._statements.add(statement)
        self.rows_changed += len(values)
        self._tx.change_each(statement, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


class CountingStore:
    """A store that records how many rows each transaction changed. It is killed before it begins one too many."""

    def __init__(self, store: Store, transactions_max: int | None = None) -> None:
        self._store = store
        self._transactions_max = transactions_max
        self.changed: list[int] = []
        self.statements: set[Statement] = set()

    async def transact(self, work: Callable[[Transaction], T], **how: Any) -> T:
        if len(self.changed) == self._transactions_max:
            raise Killed

        def counted(tx: Transaction) -> tuple[T, int]:
            counting = CountingTransaction(tx, self.statements)
            return work(counting), counting.rows_changed  # type: ignore[arg-type]

        done, count = await self._store.transact(counted, **how)
        self.changed.append(count)
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def numbers(store: Store) -> str:
    """A table of the numbers from 1 to MANY, `n`."""
    if isinstance(store, SqliteStore):
        return f"(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {MANY}) SELECT n FROM c) c"
    return f"generate_series(1, {MANY}) c(n)"


def digest(store: Store) -> str:
    """32 bytes, others for each `n`."""
    if isinstance(store, SqliteStore):
        return "CAST(printf('%032d', n) AS BLOB)"
    return "convert_to(lpad(n::text, 32, '0'), 'UTF8')"


def tables_read_whole(counting: CountingStore) -> set[str]:
    """The large tables that SQLite reads from one end to the other in a transaction: requests would wait for that."""
    if counting.path is None:
        return set()
    with contextlib.closing(sqlite3.connect(counting.path)) as store:
        plans = [
            store.execute(f"EXPLAIN QUERY PLAN {one.sqlite_text}", [None] * one.sqlite_text.count("?")).fetchall()
            for one in counting.statements
        ]
    return {step.split()[1] for plan in plans for *_, step in plan if step.startswith("SCAN")} & LARGE


@pytest.fixture
async def filled(store: Store) -> Store:
    """An account with many rows in every table that may have many of one account."""
    many, blob = numbers(store), digest(store)
    await add_account(store, OWNER)
    await add_account(store, "acct_b")
    await add_key(store, "key_a", account_id=OWNER)
    false = "0" if isinstance(store, SqliteStore) else "false"
    await run_sql(
        store,
        f"""INSERT INTO keys (id, account_id, name, prefix, digest, scopes, created_at)
        SELECT 'key_' || n, '{OWNER}', 'a name', 'sk-cdz-12345', {blob}, '', {NOW_MS} FROM {many}""",
        f"""INSERT INTO access_tokens
        SELECT 'tok_' || n, '{OWNER}', 'a name', 'c', {blob}, 'a', 1, 9, NULL, 1 FROM {many}""",
        f"""INSERT INTO idempotency SELECT '{OWNER}', {blob}, 'c' || n, 'r', {NOW_MS}, NULL FROM {many}""",
        f"""INSERT INTO audit_events (at, actor, event, account_id, subject, detail)
        SELECT {NOW_MS} - n, '{EMAIL}', 'key.rename', '{OWNER}', '', 'a name' FROM {many}""",
        f"""INSERT INTO audit_events (at, actor, event, account_id, subject, detail)
        SELECT {NOW_MS} - n, '{EMAIL}', 'account.class', 'acct_b', '', 'forte' FROM {many}""",
        f"""INSERT INTO request_details (request_id, account_id, key_id, endpoint, class_id, provider, model, status,
        cause, fault, is_charged, ended_at, duration_ms, steps)
        SELECT 'r' || n, '{OWNER}', 'key_a', 'chat', '', '', '', 400, '', '', {false}, {NOW_MS}, 1, '[]' FROM {many}""",
        f"""INSERT INTO usage (completion_id, account_id, key_id, class_id, provider, model, prompt_tokens,
        cached_tokens, completion_tokens, cost_nano, estimated, status, stream, started_at, duration_ms,
        idempotency_digest, request_id, input_nano, output_nano, short_nano, source)
        SELECT '{first_id(NOW_MS - 1)}' || n, '{OWNER}', 'key_a', 'forte', 'p', 'm', 0, 0, 0, 0, {false}, 502, {false},
        {NOW_MS} - n / 550, 1, {blob}, '', 1, 1, 0, 'request' FROM {many}""",
        f"""INSERT INTO sessions SELECT {blob}, 'acct_b', 'complete', '', 1, 1, 1, 9 FROM {many}""",
        f"""INSERT INTO links SELECT {blob}, 'verify', 'acct_b', 'b', 1, 2 FROM {many}""",
    )
    await store.transact(sum_up)
    return store


async def count(store: Store, sql: str) -> int:
    [(found,)] = await store.rows(Statement(text(sql)), {})
    return int(found)


async def left(store: Store) -> dict[str, int]:
    return {name: found for name, sql in LEFT.items() if (found := await count(store, sql))}


async def test_erasing_an_account_with_many_rows(filled: Store) -> None:
    """No transaction changes more than ROWS_MAX rows, and nothing personal is left."""
    counting = CountingStore(filled)
    await erase_account(counting, EMAIL, COMMAND_LINE, LATER_MS)
    assert max(counting.changed) <= ROWS_MAX
    assert sum(counting.changed) > 6 * MANY
    assert await left(filled) == {}
    assert tables_read_whole(counting) == set()


async def test_an_erasure_that_is_killed_between_any_two_batches_is_continued(filled: Store) -> None:
    """The first transaction closes the account and frees its address; each run goes on, and the money agrees."""
    await begin_erasure(CountingStore(filled, 1), EMAIL, COMMAND_LINE, LATER_MS)
    assert await count(filled, f"SELECT COUNT(*) FROM accounts WHERE email = '{EMAIL}' OR suspended_at IS NULL") == 1
    assert await left(filled) == {name: await count(filled, sql) for name, sql in LEFT.items()}
    await add_account(filled, "acct_c", LATER_MS)
    await run_sql(filled, f"UPDATE accounts SET email = '{EMAIL}' WHERE id = 'acct_c'")
    event = audit_events.AuditEvent(LATER_MS + 1, Operator(EMAIL), "account.class", "acct_c", detail="forte")
    await filled.transact(lambda tx: audit_events.add(tx, event))
    runs = 0
    while True:
        runs += 1
        try:
            await finish_erasures(CountingStore(filled, 1))
            break
        except Killed:
            assert await findings(filled) == []
    assert runs > 6 * MANY // ROWS_MAX
    assert await left(filled) == {"events": 1, "addresses": 1}  # those of the new account with this address


async def test_the_limits_of_retention_work_in_batches(filled: Store) -> None:
    """Removing sessions, links, audit events and requests: each in small transactions."""
    counting = CountingStore(filled)
    done = await RetentionKeeper(counting, LIMITS, make_log(io.StringIO()), pause_s=0.0).poll(LATER_MS)
    assert [*done.values()] == [MANY, MANY, 2 * MANY, MANY]
    assert max(counting.changed) <= ROWS_MAX
    assert await findings(filled) == []
    assert tables_read_whole(counting) == set()


async def test_a_killed_removal_is_continued(filled: Store) -> None:
    """Killed after each few transactions, it comes to the same end, and the money agrees at each point."""
    now_ms, killed = LATER_MS, 0
    while await count(filled, "SELECT COUNT(*) FROM usage"):
        keeper = RetentionKeeper(CountingStore(filled, 12), LIMITS, make_log(io.StringIO()), pause_s=0.0)
        try:
            await keeper.poll(now_ms)
        except Killed:
            killed += 1
        assert await findings(filled) == []
        now_ms += DAY_MS  # its claim has ended
    assert killed
    assert await count(filled, "SELECT SUM(requests) FROM usage_days") == MANY


@pytest.mark.parametrize(
    ("remove", "table"),
    [
        (lambda tx: idempotency_keys.forget_old_keys(tx, LATER_MS), "idempotency"),
        (lambda tx: request_details.remove_old(tx, LATER_MS), "request_details"),
        (lambda tx: sessions.forget_expired(tx, LATER_MS), "sessions"),
        (lambda tx: links.forget_expired(tx, LATER_MS), "links"),
    ],
)
async def test_old_rows_are_removed_some_at_a_time(
    filled: Store, remove: Callable[[Transaction], int | None], table: str
) -> None:
    """One transaction removes some of the rows that are too old, and not all."""
    counting = CountingStore(filled)
    await counting.transact(remove)
    [changed] = counting.changed
    assert 0 < changed <= ROWS_MAX
    assert await count(filled, f"SELECT COUNT(*) FROM {table}") == MANY - changed
