"""The proof of the ledger on the live store, and its export. All findings come of one statement, so of one moment."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

# Each rule selects what breaks it: the rule, whom it concerns, and by how much.
RULES = {
    "the balance is the sum of the entries": """
        SELECT a.id, a.balance_nano - COALESCE(e.total, 0) FROM accounts a
        LEFT JOIN (SELECT account_id, SUM(amount_nano) AS total FROM entries GROUP BY account_id) e
        ON e.account_id = a.id
        WHERE a.balance_nano <> COALESCE(e.total, 0)""",
    "the held sum is the sum of the open holds": """
        SELECT a.id, a.held_nano - COALESCE(h.total, 0) FROM accounts a
        LEFT JOIN (SELECT account_id, SUM(amount_nano) AS total FROM holds WHERE state = 'open' GROUP BY account_id) h
        ON h.account_id = a.id WHERE a.held_nano <> COALESCE(h.total, 0)""",
    "what is held never exceeds the balance": """
        SELECT id, balance_nano - held_nano FROM accounts WHERE held_nano < 0 OR balance_nano < held_nano""",
    "a request is charged at most once": """
        SELECT request_id, COUNT(*) FROM entries WHERE kind = 'charge' GROUP BY request_id HAVING COUNT(*) > 1""",
    "a settled hold has its charge": """
        SELECT h.request_id, 0 FROM holds h LEFT JOIN entries e ON e.request_id = h.request_id AND e.kind = 'charge'
        WHERE h.state = 'settled' AND e.id IS NULL""",
    "a charge has its settled hold": """
        SELECT e.request_id, e.amount_nano FROM entries e LEFT JOIN holds h ON h.request_id = e.request_id
        WHERE e.kind = 'charge' AND (h.state IS NULL OR h.state <> 'settled')""",
    "a charge is on the account of its hold": """
        SELECT e.request_id, e.amount_nano FROM entries e JOIN holds h ON h.request_id = e.request_id
        WHERE e.kind = 'charge' AND e.account_id <> h.account_id""",
    "a metering row has its hold, on the same account": """
        SELECT u.request_id, u.cost_nano FROM usage u LEFT JOIN holds h ON h.request_id = u.request_id
        WHERE h.request_id IS NULL OR h.account_id <> u.account_id""",
    "an ended hold has its metering row, and an open one has none": """
        SELECT h.request_id, 0 FROM holds h LEFT JOIN usage u ON u.request_id = h.request_id
        WHERE (h.state = 'open') = (u.request_id IS NOT NULL)""",
    "a metering row costs what was charged": """
        SELECT u.request_id, u.cost_nano + COALESCE(e.amount_nano, 0) FROM usage u
        LEFT JOIN entries e ON e.request_id = u.request_id AND e.kind = 'charge'
        WHERE u.cost_nano <> -COALESCE(e.amount_nano, 0)""",
}
COUNTS = """
    SELECT (SELECT COUNT(*) FROM accounts), (SELECT COUNT(*) FROM entries),
    (SELECT COUNT(*) FROM holds WHERE state = 'open'), (SELECT COUNT(*) FROM holds WHERE state <> 'open')"""
EXPORT = """
    SELECT e.id, e.created_at, a.email AS account, e.kind, e.amount_nano, e.request_id, e.note,
    u.class_id, u.prompt_tokens, u.cached_tokens, u.completion_tokens, u.estimated
    FROM entries e JOIN accounts a ON a.id = e.account_id LEFT JOIN usage u ON u.request_id = e.request_id
    WHERE e.id > :after AND (CAST(:email AS TEXT) IS NULL OR a.email = :email) ORDER BY e.id LIMIT :page"""
PAGE = 1000


class Finding(msgspec.Struct, frozen=True):
    """A rule that does not hold, for whom, and by how much."""

    rule: str
    subject: str
    off_by: int


class Counts(msgspec.Struct, frozen=True):
    """What was looked at."""

    accounts: int
    entries: int
    open_holds: int
    ended_holds: int


async def check(conn: AsyncConnection) -> list[Finding]:
    parts = (f"SELECT '{rule}', x.* FROM ({query}) x" for rule, query in RULES.items())  # noqa: S608 our own constants
    rows = await conn.execute(text(" UNION ALL ".join(parts)))
    return [Finding(str(rule), str(subject), int(off_by)) for rule, subject, off_by in rows]


async def count(conn: AsyncConnection) -> Counts:
    return Counts(*(await conn.execute(text(COUNTS))).one())


async def export(conn: AsyncConnection, email: str | None) -> AsyncIterator[dict[str, Any]]:
    """Every entry, oldest first, as it was written: never more than a page of them in memory."""
    after = 0
    while rows := (await conn.execute(text(EXPORT), {"email": email, "after": after, "page": PAGE})).mappings().all():
        for row in rows:
            yield dict(row)
        after = rows[-1]["id"]
