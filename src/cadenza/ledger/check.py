"""The ledger check: what breaks a rule, on the live store. The check is one statement, so it sees one snapshot.

Every entry and every metering row is read a few times, whatever the number of rules: what several rules need is a
query of PASSES, which the database runs once for the whole statement. If months are closed, the check begins with the
balances at the end of the last one: it reads the entries since then, all corrections, and the metering rows and sums
from a day before on. `ledger/months.py` proves that the entries of closed months are those that were checked.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import TextClause, text

from cadenza.core.money import format_dollars
from cadenza.core.records import OUTPUT_TOKENS_MAX
from cadenza.core.spans import DAY_MS
from cadenza.ledger.months import ClosedMonth
from cadenza.ledger.rules import IDEMPOTENCY_MS
from cadenza.store.statements import Statement
from cadenza.store.store import Store
from cadenza.store.tables.metered import KEY, OF_REQUEST, SUMS

# What stands in braces is filled in below: `metered` and `charges` are the metering rows and entries that are read,
# and `summed` are the amounts that add up to the balances. Both databases run these queries once and keep the result,
# because several rules use each. `suspects` are the metering rows that break a rule together with their charge, if
# any. If there are none, each metering row with costs has a charge. Then, if there are as many charges as metering
# rows with one, no charge is without a metering row and none is the second of its request. So the rules about that
# look for such charges only if there is a row of `doubts`. Metering rows that began before `kept_since`, and whose
# ids are below `first_kept_id`, may have been removed: only the sums by day are left of them.
PASSES = {
    "sums": """
        SELECT account_id, SUM(amount_nano) AS total, SUM(granted_nano) AS granted, SUM({charged}) AS charged
        FROM {summed} m GROUP BY account_id""",
    "corrections": """
        SELECT id, account_id, completion_id, amount_nano, origin, debt_id FROM entries WHERE kind = 'correction'""",
    "corrected": """
        SELECT completion_id, SUM(amount_nano) AS total FROM corrections
        WHERE completion_id IS NOT NULL AND origin <> 'refund' GROUP BY completion_id""",
    "suspects": """
        SELECT u.completion_id, u.cost_nano, u.held_nano, u.short_nano, {highest} AS highest_nano,
        {priced} AS priced_nano,
        u.cost_nano + COALESCE(e.amount_nano, 0) + COALESCE(c.total, 0) AS off_by_nano
        FROM {metered} u LEFT JOIN entries e ON e.completion_id = u.completion_id AND e.kind = 'charge'
        LEFT JOIN corrected c ON c.completion_id = u.completion_id
        WHERE u.cost_nano <> -COALESCE(e.amount_nano, 0) - COALESCE(c.total, 0) OR u.account_id <> e.account_id
        OR u.cost_nano + u.short_nano <> {priced} OR u.short_nano < 0 OR u.cost_nano > {highest}""",
    "doubts": """
        SELECT 1 FROM suspects UNION ALL
        SELECT 1 WHERE (
            SELECT COUNT(*) FROM {charges} e WHERE e.kind = 'charge' AND e.completion_id >= {first_kept_id}) <> (
            SELECT COUNT(*) FROM {metered} u WHERE u.completion_id >= {first_kept_id} AND ({surely} EXISTS (
                SELECT 1 FROM entries e
                WHERE e.completion_id = u.completion_id AND e.kind = 'charge' AND {is_read})))""",
}
# Each rule selects the rows that break it: the account, request or key, and by how much it is off. `month` is the
# month of u.day, like 202611 in UTC.
RULES = {
    "the balance is the sum of the entries": """
        SELECT a.id, a.balance_nano - COALESCE(e.total, 0) FROM accounts a
        LEFT JOIN sums e ON e.account_id = a.id
        WHERE a.balance_nano <> COALESCE(e.total, 0)""",
    "the held sum is the sum of the reserves": """
        SELECT a.id, a.held_nano - COALESCE(r.total, 0) FROM accounts a
        LEFT JOIN (SELECT account_id, SUM(amount_nano) AS total FROM reserves GROUP BY account_id) r
        ON r.account_id = a.id WHERE a.held_nano <> COALESCE(r.total, 0)""",
    "the held sum never exceeds the balance": """
        SELECT id, balance_nano - held_nano FROM accounts WHERE held_nano < 0 OR balance_nano < held_nano""",
    "a request is charged at most once": """
        SELECT e.completion_id, MIN(e.amount_nano) - SUM(e.amount_nano) FROM {charges} e
        WHERE e.kind = 'charge' AND EXISTS (SELECT 1 FROM doubts)
        GROUP BY e.completion_id HAVING COUNT(*) > 1""",
    "a charge has its metering row, on the same account": """
        SELECT e.completion_id, e.amount_nano FROM {charges} e LEFT JOIN usage u ON u.completion_id = e.completion_id
        WHERE e.kind = 'charge' AND (u.account_id IS NULL OR u.account_id <> e.account_id)
        AND EXISTS (SELECT 1 FROM doubts) AND NOT (u.account_id IS NULL AND e.completion_id < {first_kept_id})""",
    "the sums by day are those of the metering rows": """
        SELECT d.account_id, SUM(d.cost_nano) FROM (
            SELECT {day_columns} FROM usage_days WHERE {is_open_day}
            UNION ALL SELECT {request_columns} FROM {metered} u WHERE u.started_at >= {kept_since}
        ) d GROUP BY {day_key} HAVING {differs}""",
    "the sums by day cost what was charged and corrected": """
        SELECT a.id, COALESCE(d.cost, 0) + COALESCE(e.charged, 0) FROM accounts a
        LEFT JOIN (SELECT account_id, SUM(cost_nano) AS cost FROM usage_days GROUP BY account_id) d
        ON d.account_id = a.id LEFT JOIN sums e ON e.account_id = a.id
        WHERE {is_whole} AND COALESCE(d.cost, 0) <> -COALESCE(e.charged, 0)""",
    "a correction of a request follows its charge, on the same account": """
        SELECT c.completion_id, c.amount_nano FROM corrections c
        LEFT JOIN entries e ON e.completion_id = c.completion_id AND e.kind = 'charge' AND e.id < c.id
        WHERE c.completion_id IS NOT NULL AND (e.id IS NULL OR e.account_id <> c.account_id)""",
    "a metering row costs what was charged and corrected": """
        SELECT completion_id, off_by_nano FROM suspects WHERE off_by_nano <> 0""",
    "a request is refunded at most what it cost": """
        SELECT r.completion_id, r.amount_nano + COALESCE(e.amount_nano, 0) + COALESCE(c.total, 0) FROM corrections r
        LEFT JOIN entries e ON e.completion_id = r.completion_id AND e.kind = 'charge'
        LEFT JOIN corrected c ON c.completion_id = r.completion_id
        WHERE r.origin = 'refund' AND r.amount_nano > -COALESCE(e.amount_nano, 0) - COALESCE(c.total, 0)""",
    "a request costs its counts at its prices, less what could not be charged": """
        SELECT completion_id, cost_nano + short_nano - priced_nano FROM suspects
        WHERE cost_nano + short_nano <> priced_nano OR short_nano < 0""",
    "a charge is not far above its hold": """
        SELECT completion_id, cost_nano - held_nano FROM suspects WHERE cost_nano > highest_nano""",
    "of the requests with one idempotency key, one is charged within 24 hours": """
        SELECT k.completion_id, k.cost_nano FROM (
            SELECT u.completion_id, u.cost_nano, u.started_at - LAG(u.started_at) OVER (
                PARTITION BY u.idempotency_digest, u.account_id ORDER BY u.started_at, u.completion_id
            ) AS after_ms
            FROM {metered} u WHERE u.idempotency_digest IS NOT NULL AND u.cost_nano > 0
        ) k WHERE k.after_ms < {day_ms}""",
    "what is spent of a cap is the sum of the days of its period": """
        SELECT c.key_id, c.spent_nano - COALESCE(s.total, 0) FROM caps c
        LEFT JOIN (
            SELECT k.key_id, SUM(u.cost_nano) AS total FROM caps k JOIN usage_days u ON u.key_id = k.key_id
            WHERE k.month = 0 OR k.month = {month} GROUP BY k.key_id
        ) s ON s.key_id = c.key_id
        WHERE c.spent_nano <> COALESCE(s.total, 0)""",
    "no key spends and holds more than its cap, except by requests that ran before the cap was set": """
        SELECT c.key_id, c.spent_nano + COALESCE(h.total, 0) - c.limit_nano - c.excused_nano FROM caps c
        LEFT JOIN (SELECT key_id, SUM(amount_nano) AS total FROM cap_holds GROUP BY key_id) h ON h.key_id = c.key_id
        WHERE c.spent_nano + COALESCE(h.total, 0) > c.limit_nano + c.excused_nano""",
    "only keys with a cap hold a part of one": """
        SELECT h.key_id, h.amount_nano FROM cap_holds h LEFT JOIN caps c ON c.key_id = h.key_id
        WHERE c.key_id IS NULL""",
    "a key and its account are marked if the key has a cap, and only then": """
        SELECT k.id, 0 FROM keys k JOIN accounts a ON a.id = k.account_id LEFT JOIN caps c ON c.key_id = k.id
        WHERE k.is_capped <> (c.key_id IS NOT NULL) OR (c.key_id IS NOT NULL AND NOT a.has_caps)""",
    "the debt of an account is the sum of its open debts": """
        SELECT a.id, a.debt_nano - COALESCE(d.total, 0) FROM accounts a
        LEFT JOIN (SELECT account_id, SUM(left_nano) AS total FROM debts GROUP BY account_id) d ON d.account_id = a.id
        WHERE a.debt_nano <> COALESCE(d.total, 0)""",
    "an account with a debt has no free credit": """
        SELECT id, balance_nano - held_nano FROM accounts WHERE debt_nano > 0 AND balance_nano > held_nano""",
    "what is paid of a debt is the sum of its entries": """
        SELECT d.source, d.amount_nano - d.left_nano + COALESCE(e.total, 0) FROM debts d
        LEFT JOIN (
            SELECT debt_id, SUM(amount_nano) AS total FROM corrections WHERE debt_id IS NOT NULL GROUP BY debt_id
        ) e ON e.debt_id = d.id
        WHERE d.amount_nano - d.left_nano <> -COALESCE(e.total, 0)""",
    "the granted credit of an account is the sum of what its entries say of it": """
        SELECT a.id, a.granted_nano - COALESCE(e.granted, 0) FROM accounts a
        LEFT JOIN sums e ON e.account_id = a.id
        WHERE a.granted_nano <> COALESCE(e.granted, 0)""",
    "granted credit is a part of the balance": """
        SELECT a.id, a.balance_nano - a.granted_nano FROM accounts a
        WHERE a.granted_nano < 0 OR a.granted_nano > a.balance_nano""",
    "a closed month begins with what the month before closed with": """
        SELECT c.month, c.off_by_nano FROM (
            SELECT month, opening_nano - COALESCE(LAG(closing_nano) OVER (ORDER BY ends_at), 0) AS off_by_nano
            FROM closed_months WHERE hash IS NOT NULL
        ) c WHERE c.off_by_nano <> 0""",
    "a closed month closes with the sum of its balances": """
        SELECT m.month, m.closing_nano - COALESCE(b.total, 0) FROM closed_months m
        LEFT JOIN (SELECT month, SUM(balance_nano) AS total FROM closed_balances GROUP BY month) b ON b.month = m.month
        WHERE m.hash IS NOT NULL AND m.closing_nano <> COALESCE(b.total, 0)""",
}
KEPT_SINCE = "(SELECT COALESCE(MAX(kept_from), 0) FROM retention WHERE name = 'usage')"
OF_DATABASE = {
    "sqlite": {
        "month": "CAST(strftime('%Y%m', u.day * 86400, 'unixepoch') AS INTEGER)",
        "first_kept_id": f"printf('chatcmpl-%011x', {KEPT_SINCE})",
        "in_any_order": "NOT INDEXED",  # sorting ten million rows takes half as long as finding each by the index
    },
    "postgres": {
        "month": "CAST(to_char(DATE '1970-01-01' + CAST(u.day AS INTEGER), 'YYYYMM') AS INTEGER)",
        "first_kept_id": f"'chatcmpl-' || lpad(to_hex({KEPT_SINCE}), 11, '0')",
        "in_any_order": "",
    },
}
FIXED = {
    "kept_since": KEPT_SINCE,
    "day_ms": str(IDEMPOTENCY_MS),
    "priced": """(
    (u.prompt_tokens - u.cached_tokens) * u.input_nano + u.cached_tokens * COALESCE(u.cached_input_nano, u.input_nano)
    + u.completion_tokens * u.output_nano)""",
    # An upstream may count twice as many prompt tokens, and send more of an answer than was asked for.
    "highest": f"(2 * u.held_nano + {OUTPUT_TOKENS_MAX} * (u.input_nano + u.output_nano))",
    "day_columns": ", ".join((*KEY, *SUMS)),
    "request_columns": ", ".join((*OF_REQUEST.values(), *(f"-({sql})" for sql in SUMS.values()))),
    "day_key": ", ".join(KEY),
    "differs": " OR ".join(f"SUM({name}) <> 0" for name in SUMS),
}
ALL = {
    "metered": "usage",
    "charges": "entries",
    "summed": "(SELECT * FROM entries {in_any_order})",
    "surely": "u.cost_nano > 0 OR",  # a metering row with costs has a charge
    "is_read": "TRUE",
    "is_open_day": f"day >= {KEPT_SINCE} / {DAY_MS}",
    "is_whole": "TRUE",
    "charged": "CASE WHEN kind = 'charge' OR (completion_id IS NOT NULL AND origin <> 'refund') THEN amount_nano END",
}
OPEN = {
    "metered": "(SELECT * FROM usage WHERE completion_id >= :first_request AND started_at >= :began)",
    "charges": "(SELECT * FROM entries WHERE id >= :first AND created_at >= :since)",
    "summed": """(
        SELECT account_id, amount_nano, granted_nano FROM entries WHERE id >= :first AND created_at >= :since
        UNION ALL SELECT account_id, balance_nano, granted_nano FROM closed_balances WHERE month = :closed)""",
    "surely": "",
    "is_read": "e.id >= :first AND e.created_at >= :since",
    "is_open_day": f"day >= :began / {DAY_MS} AND day >= {KEPT_SINCE} / {DAY_MS}",
    "is_whole": "FALSE",
    "charged": "0",
}


def rules_of(database: str) -> dict[str, str]:
    """The rules in the SQL of a database, each as a statement of its own, which reads all entries."""
    return {rule: _write(query, database, ALL) for rule, query in RULES.items()}


def _check(database: str, rows: Mapping[str, str]) -> TextClause:
    rules = (f"SELECT '{rule}', x.* FROM ({query}) x" for rule, query in RULES.items())  # noqa: S608 our own constants
    return text(_write(" UNION ALL ".join(rules), database, rows))


def _write(query: str, database: str, rows: Mapping[str, str]) -> str:
    """The query after what it needs, for a database, over these rows."""
    passes = ", ".join(f"{name} AS ({sql})" for name, sql in PASSES.items())
    of_database = OF_DATABASE[database]
    read = {name: sql.format(**of_database) for name, sql in rows.items()}
    return f"WITH {passes} {query}".format(**FIXED, **of_database, **read)


CHECK = Statement(_check("sqlite", ALL), postgres=_check("postgres", ALL))
CHECK_OPEN = Statement(_check("sqlite", OPEN), postgres=_check("postgres", OPEN))
_COUNTS = """
    SELECT (SELECT COUNT(*) FROM accounts), (SELECT COUNT(*) FROM {charges} e),
    (SELECT COUNT(*) FROM {metered} u),
    (SELECT COUNT(*) FROM reserves)"""
COUNTS = Statement(text(_COUNTS.format(**ALL)))
COUNTS_OPEN = Statement(text(_COUNTS.format(**OPEN)))


class Violation(msgspec.Struct, frozen=True):
    """A rule that is broken, the account, request or key that breaks it, and by how many nano-dollars it is off.

    Zero: by something else than an amount.
    """

    rule: str
    subject: str
    off_by: int

    @property
    def off_by_dollars(self) -> str:
        return f"{format_dollars(self.off_by)} dollars"


class CheckCounts(msgspec.Struct, frozen=True):
    """How much was checked, besides the corrections of closed months."""

    accounts: int
    entries: int
    requests: int
    reserves: int  # of running processes


async def find_violations(store: Store, closed: ClosedMonth | None = None) -> list[Violation]:
    """What breaks a rule, of everything or since a closed month."""
    rows = await store.report(*((CHECK_OPEN, _since(closed)) if closed else (CHECK, {})))
    return [Violation(str(rule), str(subject), int(off_by)) for rule, subject, off_by in rows]


async def count(store: Store, closed: ClosedMonth | None = None) -> CheckCounts:
    """How much such a check reads."""
    [counts] = await store.report(*((COUNTS_OPEN, _since(closed)) if closed else (COUNTS, {})))
    return CheckCounts(*map(int, counts))


def _since(closed: ClosedMonth) -> dict[str, Any]:
    """A request may have begun before the end of the month in which it is charged."""
    began = closed.ends_at - DAY_MS
    return {
        "first": closed.first_open_id,
        "since": closed.ends_at,
        "closed": closed.month,
        "began": began,
        "first_request": f"chatcmpl-{began:011x}",
    }
