"""The ledger as an auditor reads it: straight from the store file, with arithmetic of its own.

Nothing here calls the code that charges. Prices, sums and expected costs are computed again, so that a mistake in the
service's arithmetic cannot hide itself.
"""

import contextlib
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from cadenza.ledger.check import rules_of
from tests.service_config import CHARACTER
from tests.tokens import count_tokens

READ_S = 60.0
GIVE_BACK_S = 30.0
POLL_INTERVAL_S = 0.05
MESSAGE_TOKENS = 4
MARKED_CHARS = 5
INTERRUPTED = 500
# Nano-dollars a token: input, cached input, output.
PRICES_NANO = {"mezzo": (100, 20, 210), "forte": (1070, 1070, 3450), "fortissimo": (3450, 3450, 17250)}
ROWS = """
    SELECT u.request_id, u.completion_id, CASE WHEN e.id IS NULL THEN 'released' ELSE 'settled' END AS state,
    u.prompt_tokens, u.completion_tokens, u.status, u.cost_nano, u.estimated, u.provider
    FROM usage u LEFT JOIN entries e ON e.completion_id = u.completion_id AND e.kind = 'charge'
    UNION ALL
    SELECT request_id, completion_id, 'open', prompt_tokens, delivered_tokens, NULL, NULL, NULL, NULL FROM marks"""
CHARGES = """
    SELECT e.amount_nano, e.completion_id, u.request_id, u.class_id, u.prompt_tokens, u.cached_tokens,
    u.completion_tokens, u.estimated
    FROM entries e JOIN accounts a ON a.id = e.account_id JOIN usage u ON u.completion_id = e.completion_id
    WHERE e.kind = 'charge' AND a.email = ? ORDER BY e.id"""


class Row(msgspec.Struct, frozen=True):
    """What the store knows about one request: how it ended, or what is marked as delivered while it runs."""

    request_id: str
    completion_id: str
    state: str
    prompt_tokens: int
    completion_tokens: int
    status: int | None
    cost_nano: int | None
    estimated: bool | None
    provider: str | None

    @property
    def is_swept(self) -> bool:
        """Another process settled it, because its own was dead; the provider is then unknown."""
        return self.status == INTERRUPTED and self.provider == ""


class LedgerReader:
    """Reads the store file of a service."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def query(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        with self._open() as store:
            return store.execute(sql, values).fetchall()

    @property
    def balance_nano(self) -> int:
        """Of the only account."""
        return int(self.query("SELECT balance_nano FROM accounts")[0][0])

    @property
    def held_nano(self) -> int:
        """Of the only account."""
        return int(self.query("SELECT held_nano FROM accounts")[0][0])

    @property
    def reserves(self) -> int:
        """How many processes have credit of an account reserved. They give it back some time after its last use."""
        return int(self.query("SELECT COUNT(*) FROM reserves")[0][0])

    def is_given_back(self) -> bool:
        """Whether nothing is reserved. Until then processes are asked for their reserves, as another one would ask."""
        if self.reserves == 0:
            return True
        with self._open() as store, store:
            store.execute("UPDATE reserves SET is_asked = TRUE WHERE has_spare")
        return False

    @property
    def charges(self) -> int:
        return int(self.query("SELECT COUNT(*) FROM entries WHERE kind = 'charge'")[0][0])

    def rows(self) -> dict[str, Row]:
        """The requests that ended or are marked, by the request id that the client sent."""
        return {row["request_id"]: msgspec.convert(dict(row), Row, strict=False) for row in self.query(ROWS)}

    def marked_tokens(self) -> int:
        """The delivered tokens that are marked for all running requests."""
        return int(self.query("SELECT COALESCE(SUM(delivered_tokens), 0) FROM marks")[0][0])

    def charges_of(self, email: str) -> list[dict[str, Any]]:
        """The charges of one account with their metering rows, oldest first."""
        return [{**dict(row), "estimated": bool(row["estimated"])} for row in self.query(CHARGES, email)]

    def check_rules(self) -> None:
        """Every audit rule holds, and no account was ever below zero."""
        with self._open() as store:  # one connection, because each has to read the whole schema
            found = {rule: store.execute(query).fetchall() for rule, query in rules_of("sqlite").items()}
            entries = store.execute("SELECT id, account_id, amount_nano FROM entries ORDER BY id").fetchall()
        assert {rule: [tuple(row) for row in rows] for rule, rows in found.items() if rows} == {}
        balances_nano = dict[str, int]()
        for entry in entries:
            balance_nano = balances_nano.get(entry["account_id"], 0) + entry["amount_nano"]
            assert balance_nano >= 0, f"below zero at entry {entry['id']}"
            balances_nano[entry["account_id"]] = balance_nano

    def check(self) -> None:
        """The rules hold, and nothing is held, once running processes were asked for their reserves."""
        self.check_rules()
        until_s = time.monotonic() + GIVE_BACK_S
        while not self.is_given_back() and time.monotonic() < until_s:
            time.sleep(POLL_INTERVAL_S)
        assert self.reserves == 0
        assert self.query("SELECT id FROM accounts WHERE held_nano <> 0") == []

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=READ_S)) as connection:
            connection.row_factory = sqlite3.Row
            yield connection


def cost_nano(class_id: str, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> int:
    fresh_nano, cached_nano, output_nano = PRICES_NANO[class_id]
    fresh_tokens = prompt_tokens - cached_tokens
    return fresh_tokens * fresh_nano + cached_tokens * cached_nano + completion_tokens * output_nano


def usage_cost_nano(class_id: str, usage: dict[str, Any]) -> int:
    """The cost of a usage object."""
    cached_tokens = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return cost_nano(class_id, usage["prompt_tokens"], usage["completion_tokens"], cached_tokens)


def estimate_tokens(content: str) -> int:
    """The prompt tokens of the character layer and one user message, counted locally."""
    return count_tokens(CHARACTER) + count_tokens(content) + 2 * MESSAGE_TOKENS


def marked_costs_nano(class_id: str, content: str, delivered: str) -> list[int]:
    """The cost of a reply whose process died, by its mark: counted or, by length, with a token for five characters."""
    by_length = [len(text) // MARKED_CHARS for text in (CHARACTER + content, delivered)]
    return [cost_nano(class_id, *by_length), delivered_cost_nano(class_id, content, [delivered])]


def left_cost_nano(class_id: str, content: str, chunks: Iterable[str]) -> int:
    """The cost of a reply whose client left while the upstream worked on it, after these chunks."""
    return cost_nano(class_id, estimate_tokens(content), count_tokens("".join(chunks)))


def delivered_cost_nano(class_id: str, content: str, chunks: Iterable[str]) -> int:
    """The cost of a reply without usage that delivered these chunks; zero if there are none."""
    delivered_tokens = count_tokens("".join(chunks))
    return cost_nano(class_id, estimate_tokens(content), delivered_tokens) if delivered_tokens else 0
