"""The books as an auditor reads them: the store itself, from outside of the service, and arithmetic of our own.

Nothing here calls the code that charges: the prices, the sums and the counts of what should have been charged are
made again, so that a fault of the service cannot hide in its own arithmetic.
"""

import contextlib
import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from cadenza.core.tokens import count_tokens
from cadenza.store.audit import RULES
from tests.service import CHARACTER

READ_S = 30.0
MESSAGE_TOKENS = 4
INTERRUPTED = 500
# Nano-dollars a token: input, cached input, output.
PRICES_NANO = {"mezzo": (100, 20, 210), "forte": (1070, 1070, 3450), "fortissimo": (3450, 3450, 17250)}
ROWS = """
    SELECT i.shown_id, h.request_id, h.state, h.prompt_tokens AS estimate_tokens, h.delivered_tokens AS marked_tokens,
    u.status, u.cost_nano, u.estimated, u.provider
    FROM idempotency i JOIN holds h ON h.request_id = i.request_id
    LEFT JOIN usage u ON u.request_id = i.request_id"""


class Row(msgspec.Struct, frozen=True):
    """What the store knows of one request: its hold, and how it ended."""

    shown_id: str
    request_id: str
    state: str
    estimate_tokens: int
    marked_tokens: int
    status: int | None
    cost_nano: int | None
    estimated: bool | None
    provider: str | None

    @property
    def is_swept(self) -> bool:
        """Another process ended it: its own was gone, and nobody knows any more who answered it."""
        return self.status == INTERRUPTED and self.provider == ""


class Books:
    """The store of a fleet, which has one account."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def query(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=READ_S)) as connection:
            connection.row_factory = sqlite3.Row
            return connection.execute(sql, values).fetchall()

    @property
    def balance_nano(self) -> int:
        return int(self.query("SELECT balance_nano FROM accounts")[0][0])

    @property
    def held_nano(self) -> int:
        return int(self.query("SELECT held_nano FROM accounts")[0][0])

    @property
    def open_holds(self) -> int:
        return int(self.query("SELECT COUNT(*) FROM holds WHERE state = 'open'")[0][0])

    @property
    def charges(self) -> int:
        return int(self.query("SELECT COUNT(*) FROM entries WHERE kind = 'charge'")[0][0])

    def rows(self) -> dict[str, Row]:
        """By the request id that the client sent. The way to it is the idempotency key, which each request has."""
        return {row["shown_id"]: msgspec.convert(dict(row), Row, strict=False) for row in self.query(ROWS)}

    def marked_tokens(self) -> int:
        """The marks of all open holds."""
        return int(self.query("SELECT COALESCE(SUM(delivered_tokens), 0) FROM holds WHERE state = 'open'")[0][0])

    def prove(self) -> None:
        """Every rule of the audit holds, no hold is open, and at no entry was the balance below zero."""
        broken = {rule: [tuple(row) for row in rows] for rule, query in RULES.items() if (rows := self.query(query))}
        assert broken == {}
        assert self.open_holds == self.held_nano == 0
        balance_nano = 0
        for entry in self.query("SELECT id, amount_nano FROM entries ORDER BY id"):
            balance_nano += entry["amount_nano"]
            assert balance_nano >= 0, f"below zero at entry {entry['id']}"
        assert balance_nano == self.balance_nano


def cost_nano(class_id: str, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> int:
    fresh_nano, cached_nano, output_nano = PRICES_NANO[class_id]
    fresh_tokens = prompt_tokens - cached_tokens
    return fresh_tokens * fresh_nano + cached_tokens * cached_nano + completion_tokens * output_nano


def usage_cost_nano(class_id: str, usage: dict[str, Any]) -> int:
    """What an upstream's usage object costs."""
    cached_tokens = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return cost_nano(class_id, usage["prompt_tokens"], usage["completion_tokens"], cached_tokens)


def estimate_tokens(content: str) -> int:
    """A prompt of the character layer and one user message, by our own count."""
    return count_tokens(CHARACTER) + count_tokens(content) + 2 * MESSAGE_TOKENS


def delivered_cost_nano(class_id: str, content: str, chunks: Iterable[str]) -> int:
    """What a reply costs that broke off after these chunks, or was not counted: nothing where there are none."""
    delivered_tokens = count_tokens("".join(chunks))
    return cost_nano(class_id, estimate_tokens(content), delivered_tokens) if delivered_tokens else 0


def dollars_nano(text: str) -> int:
    """'0.000018' -> 18000, by digits alone."""
    whole, _, part = text.partition(".")
    return int(whole) * 10**9 + int(part.ljust(9, "0"))


def account_list(stdout: str) -> dict[str, Any]:
    """The one account of `cadenza account list --json`."""
    [account] = json.loads(stdout)
    return dict(account)
