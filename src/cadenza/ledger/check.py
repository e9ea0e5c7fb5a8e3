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

# The words in capitals are filled in below: METERED and CHARGES are the metering rows and entries that are read, and
# SUMMED are the amounts that add up to the balances. Both databases run these queries once and keep the result, because
# several rules use each. `suspects` are the metering rows that break a rule together with their charge, if any. If
# there are none, each metering row with costs has a charge. Then, if there are as many charges as metering rows with
# one, no charge is without a metering row and none is the second of its request. So the rules about that look for such
# charges only if there is a row of `doubts`. Metering rows that began before KEPT_SINCE, and whose ids are below
# FIRST_KEPT_ID, may have been removed: only the sums by day are left of them.
PASSES = {
    "sums": """
        SELECT account_id, SUM(amount_nano) AS total, SUM(granted_nano) AS granted, SUM(CHARGED) AS charged
        FROM SUMMED m GROUP BY account_id""",
    "corrections": """
        SELECT id, account_id, completion_id, amount_nano, origin, debt_id FROM entries WHERE kind = 'correction'""",
    "corrected": """
        SELECT completion_id, SUM(amount_nano) AS total FROM corrections
        WHERE completion_id IS NOT NULL AND origin <> 'refund' GROUP BY completion_id""",
    "suspects": """
        SELECT u.completion_id, u.cost_nano, u.held_nano, u.short_nano, HIGHEST AS highest_nano, PRICED AS priced_nano,
        u.cost_nano + COALESCE(e.amount_nano, 0) + COALESCE(c.total, 0) AS off_by_nano
        FROM METERED u LEFT JOIN entries e ON e.completion_id = u.completion_id AND e.kind = 'charge'
        LEFT JOIN corrected c ON c.completion_id = u.completion_id
        WHERE u.cost_nano <> -COALESCE(e.amount_nano, 0) - COALESCE(c.total, 0) OR u.account_id <> e.account_id
        OR u.cost_nano + u.short_nano <> PRICED OR u.short_nano < 0 OR u.cost_nano > HIGHEST""",
    "doubts": """
        SELECT 1 FROM suspects UNION ALL
        SELECT 1 WHERE (
            SELECT COUNT(*) FROM CHARGES e WHERE e.kind = 'charge' AND e.completion_id >= FIRST_KEPT_ID) <> (
            SELECT COUNT(*) FROM METERED u WHERE u.completion_id >= FIRST_KEPT_ID AND (SURELY EXISTS (
                SELECT 1 FROM entries e WHERE e.completion_id = u.completion_id AND e.kind = 'charge' AND IS_READ)))""",
}
# Each rule selects the rows that break it: the account, request or key, and by how much it is off. MONTH is the month
# of u.day, like 202611 in UTC.
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
        SELECT e.completion_id, MIN(e.amount_nano) - SUM(e.amount_nano) FROM CHARGES e
        WHERE e.kind = 'charge' AND EXISTS (SELECT 1 FROM doubts)
        GROUP BY e.completion_id HAVING COUNT(*) > 1""",
    "a charge has its metering row, on the same account": """
        SELECT e.completion_id, e.amount_nano FROM CHARGES e LEFT JOIN usage u ON u.completion_id = e.completion_id
        WHERE e.kind = 'charge' AND (u.account_id IS NULL OR u.account_id <> e.account_id)
        AND EXISTS (SELECT 1 FROM doubts) AND NOT (u.account_id IS NULL AND e.completion_id < FIRST_KEPT_ID)""",
    "the sums by day are those of the metering rows": """
        SELECT d.account_id, SUM(d.cost_nano) FROM (
            SELECT DAY_COLUMNS FROM usage_days WHERE IS_OPEN_DAY
            UNION ALL SELECT REQUEST_COLUMNS FROM METERED u WHERE u.started_at >= KEPT_SINCE
        ) d GROUP BY DAY_KEY HAVING DIFFERS""",
    "the sums by day cost what was charged and corrected": """
        SELECT a.id, COALESCE(d.cost, 0) + COALESCE(e.charged, 0) FROM accounts a
        LEFT JOIN (SELECT account_id, SUM(cost_nano) AS cost FROM usage_days GROUP BY account_id) d
        ON d.account_id = a.id LEFT JOIN sums e ON e.account_id = a.id
        WHERE IS_WHOLE AND COALESCE(d.cost, 0) <> -COALESCE(e.charged, 0)""",
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
            FROM METERED u WHERE u.idempotency_digest IS NOT NULL AND u.cost_nano > 0
        ) k WHERE k.after_ms < DAY_MS""",
    "what is spent of a cap is the sum of the days of its period": """
        SELECT c.key_id, c.spent_nano - COALESCE(s.total, 0) FROM caps c
        LEFT JOIN (
            SELECT k.key_id, SUM(u.cost_nano) AS total FROM caps k JOIN usage_days u ON u.key_id = k.key_id
            WHERE k.month = 0 OR k.month = MONTH GROUP BY k.key_id
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
OF_DATABASE = {
    "sqlite": {
        "MONTH": "CAST(strftime('%Y%m', u.day * 86400, 'unixepoch') AS INTEGER)",
        "FIRST_KEPT_ID": "printf('chatcmpl-%011x', KEPT_SINCE)",
        "IN_ANY_ORDER": "NOT INDEXED",  # sorting ten million rows takes half as long as finding each by the index
    },
    "postgres": {
        "MONTH": "CAST(to_char(DATE '1970-01-01' + CAST(u.day AS INTEGER), 'YYYYMM') AS INTEGER)",
        "FIRST_KEPT_ID": "'chatcmpl-' || lpad(to_hex(KEPT_SINCE), 11, '0')",
        "IN_ANY_ORDER": "",
    },
}
PRICED = """(
    (u.prompt_tokens - u.cached_tokens) * u.input_nano + u.cached_tokens * COALESCE(u.cached_input_nano, u.input_nano)
    + u.completion_tokens * u.output_nano)"""
# An upstream may count twice as many prompt tokens, and send more of an answer than was asked for.
HIGHEST = f"(2 * u.held_nano + {OUTPUT_TOKENS_MAX} * (u.input_nano + u.output_nano))"
KEPT_SINCE = "(SELECT COALESCE(MAX(kept_from), 0) FROM retention WHERE name = 'usage')"
WORDS = {"PRICED": PRICED, "HIGHEST": HIGHEST, "DAY_MS": str(IDEMPOTENCY_MS)}
WORDS |= {
    "DAY_COLUMNS": ", ".join((*KEY, *SUMS)),
    "REQUEST_COLUMNS": ", ".join((*OF_REQUEST.values(), *(f"-({sql})" for sql in SUMS.values()))),
    "DAY_KEY": ", ".join(KEY),
    "DIFFERS": " OR ".join(f"SUM({name}) <> 0" for name in SUMS),
}
ALL = {
    "METERED": "usage",
    "CHARGES": "entries",
    "SUMMED": "(SELECT * FROM entries IN_ANY_ORDER)",
    "SURELY": "u.cost_nano > 0 OR",  # a metering row with costs has a charge
    "IS_READ": "TRUE",
    "IS_OPEN_DAY": f"day >= KEPT_SINCE / {DAY_MS}",
    "IS_WHOLE": "TRUE",
    "CHARGED": "CASE WHEN kind = 'charge' OR (completion_id IS NOT NULL AND origin <> 'refund') THEN amount_nano END",
}
OPEN = {
    "METERED": "(SELECT * FROM usage WHERE completion_id >= :first_request AND started_at >= :began)",
    "CHARGES": "(SELECT * FROM entries WHERE id >= :first AND created_at >= :since)",
    "SUMMED": """(
        SELECT account_id, amount_nano, granted_nano FROM entries WHERE id >= :first AND created_at >= :since
        UNION ALL SELECT account_id, balance_nano, granted_nano FROM closed_balances WHERE month = :closed)""",
    "SURELY": "",
    "IS_READ": "e.id >= :first AND e.created_at >= :since",
    "IS_OPEN_DAY": f"day >= :began / {DAY_MS} AND day >= KEPT_SINCE / {DAY_MS}",
    "IS_WHOLE": "FALSE",
    "CHARGED": "0",
}


def rules_of(database: str) -> dict[str, str]:
    """The rules in the SQL of a database, each as a statement of its own, which reads all entries."""
    words = _words(database, ALL)
    return {rule: _fill_in(f"{_passes()} {query}", words) for rule, query in RULES.items()}


def _check(database: str, rows: Mapping[str, str]) -> TextClause:
    rules = " UNION ALL ".join(f"SELECT '{rule}', x.* FROM ({query}) x" for rule, query in RULES.items())  # noqa: S608 our own constants
    return text(_fill_in(f"{_passes()} {rules}", _words(database, rows)))


def _passes() -> str:
    return "WITH " + ", ".join(f"{name} AS ({query})" for name, query in PASSES.items())


def _words(database: str, rows: Mapping[str, str]) -> dict[str, str]:
    return {**WORDS, **rows, **OF_DATABASE[database], "KEPT_SINCE": KEPT_SINCE}


def _fill_in(query: str, words: Mapping[str, str]) -> str:
    for word, sql in words.items():
        query = query.replace(word, sql)
    return query


CHECK = Statement(_check("sqlite", ALL), postgres=_check("postgres", ALL))
CHECK_OPEN = Statement(_check("sqlite", OPEN), postgres=_check("postgres", OPEN))
_COUNTS = """
    SELECT (SELECT COUNT(*) FROM accounts), (SELECT COUNT(*) FROM CHARGES e),
    (SELECT COUNT(*) FROM METERED u),
    (SELECT COUNT(*) FROM reserves)"""
COUNTS = Statement(text(_fill_in(_COUNTS, ALL)))
COUNTS_OPEN = Statement(text(_fill_in(_COUNTS, OPEN)))


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
    found = await store.report(*((CHECK_OPEN, _since(closed)) if closed else (CHECK, {})))
    return [Violation(str(rule), str(subject), int(off_by)) for rule, subject, off_by in found]


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
