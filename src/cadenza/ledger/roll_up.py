"""Rolls up old metering rows: the requests of a day become one row for each key, class, price and outcome.

No sum changes. What the rows are grouped by is all that a report asks for: key, class and its version, provider and
model, prices, status, whether the counts are estimates, whether the provider's cost is known, whether there are tokens,
the day of the request and the day of its charge. So a row of days still costs its counts at its prices, and reports,
caps and the statement of a month add up as before. The entries stay: `ledger/check.py` compares them with the days.

An account is rolled up in slices, each in one transaction under its lock, so that requests do not wait for long. A day
that takes several slices has several rows. What is lost: the ids, the time and the duration of each request.
"""

from sqlalchemy import text

from cadenza.core.spans import DAY_MS
from cadenza.store.statements import Statement
from cadenza.store.store import Store, StoreRefused, Transaction
from cadenza.store.tables.accounts import lock_account

SLICE_ROWS = 500
ACCOUNTS = 100  # at once
_NAMED = "account_id, key_id, class_id, version, provider, model, input_nano, output_nano, cached_input_nano, status"
_SUMMED = ("prompt_tokens", "cached_tokens", "completion_tokens", "cost_nano", "short_nano", "provider_cost_nano")
_SLICE = """u.account_id = :account AND u.started_at <= :last_at
    AND (u.started_at < :last_at OR u.completion_id <= :last_id)"""  # one bound: SQLite searches the index by one only
_DAY = f"u.started_at - u.started_at % {DAY_MS}"
_CHARGED = f"e.created_at - e.created_at % {DAY_MS}"
NEXT = Statement(
    text("""
    SELECT started_at, completion_id FROM usage WHERE account_id = :account AND started_at < :before
    ORDER BY started_at, completion_id LIMIT :count""")
)
ADD_DAYS = Statement(
    text(f"""
    INSERT INTO usage_days ({_NAMED}, estimated, started_at, charged_at, requests, charged_nano, {", ".join(_SUMMED)})
    SELECT {", ".join(f"u.{name}" for name in _NAMED.split(", "))}, u.estimated, {_DAY}, {_CHARGED}, COUNT(*),
    -COALESCE(SUM(e.amount_nano), 0), {", ".join(f"SUM(u.{name})" for name in _SUMMED)}
    FROM usage u LEFT JOIN entries e ON e.completion_id = u.completion_id AND e.kind = 'charge'
    WHERE {_SLICE}
    GROUP BY {", ".join(map(str, range(1, 14)))}, u.provider_cost_nano IS NULL,
    u.prompt_tokens + u.completion_tokens > 0""")  # noqa: S608 our own names
)
REMOVE_REQUESTS = Statement(
    text(f"""
    DELETE FROM usage WHERE completion_id IN (SELECT u.completion_id FROM usage u WHERE {_SLICE})""")  # noqa: S608 our own names
)
DUE = Statement(
    text("""
    SELECT a.id FROM accounts a WHERE a.id > :after
    AND EXISTS (SELECT 1 FROM usage u WHERE u.account_id = a.id AND u.started_at < :before)
    ORDER BY a.id LIMIT :count""")
)
OLDEST = Statement(
    text("""
    SELECT MIN(o.at) FROM (
        SELECT (SELECT MIN(u.started_at) FROM usage u WHERE u.account_id = a.id) AS at FROM accounts a) o""")
)


async def accounts_due(store: Store, before_ms: int, after: str = "", count: int = ACCOUNTS) -> list[str]:
    """The next accounts, by id, that have requests of before this time."""
    values = {"before": before_ms, "after": after, "count": count}
    return [account_id for (account_id,) in await store.report(DUE, values)]


def roll_up(tx: Transaction, account_id: str, before_ms: int, count: int = SLICE_ROWS) -> int:
    """Roll up the oldest requests of an account, of days that end by then. Return how many."""
    assert before_ms % DAY_MS == 0, "days are rolled up whole"
    lock_account(tx, account_id)
    found = tx.rows(NEXT, {"account": account_id, "before": before_ms, "count": count})
    if not found:
        return 0
    last_at, last_id = found[-1]
    slice_ = {"account": account_id, "last_at": last_at, "last_id": last_id}
    tx.change(ADD_DAYS, slice_)
    if tx.change(REMOVE_REQUESTS, slice_) != len(found):
        raise StoreRefused("The store refused to roll up usage: it changed meanwhile.")
    return len(found)


async def oldest_request(store: Store) -> int | None:
    """When the oldest request began that is not rolled up."""
    [(at,)] = await store.report(OLDEST, {})
    return None if at is None else int(at)
