"""Activity: the requests of an account, one by one, as its owner sees them. Provider and model are not shown.

A request that was refused before credit was held for it is not here: nothing is stored of it.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from cadenza.core.formats import rfc3339
from cadenza.core.money import format_dollars
from cadenza.core.spans import Span

PAGE_MAX = 1000
PAGE_DEFAULT = 100
FAILED = "failed"  # any status but 200
CURSOR = re.compile(r"([0-9]{1,16})-([A-Za-z0-9_-]{1,100})", re.ASCII)
STATUS = re.compile(r"[1-5][0-9]{2}", re.ASCII)


class ActivityPlace(NamedTuple):
    """Where a page ends: at this request."""

    started_at: int
    completion_id: str

    def __str__(self) -> str:
        return f"{self.started_at}-{self.completion_id}"


class ActivityFilter(msgspec.Struct, frozen=True):
    """Which requests are wanted. What is empty does not matter."""

    span: Span
    key_id: str = ""
    class_id: str = ""
    status: str = ""  # a number, or `failed`

    @property
    def is_narrow(self) -> bool:
        return bool(self.key_id or self.class_id or self.status)


class ActivityRow(msgspec.Struct, frozen=True):
    """One request. A web search that was charged has a row of its own, of the class `search`."""

    completion_id: str
    started_at: int
    request_id: str
    key_id: str
    class_id: str
    stream: bool
    status: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    estimated: bool
    cost_nano: int
    first_byte_ms: int | None
    duration_ms: int
    key_name: str
    key_prefix: str
    is_web: bool

    @property
    def place(self) -> ActivityPlace:
        return ActivityPlace(self.started_at, self.completion_id)

    def shown(self) -> dict[str, Any]:
        """As the API shows it."""
        return {
            "id": self.completion_id,
            "request_id": self.request_id,
            "created": self.started_at // 1000,
            "created_at": rfc3339(self.started_at),
            "key": self.key_name if self.is_web else self.key_id,
            "model": self.class_id,
            "stream": self.stream,
            "status": self.status,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "estimated": self.estimated,
            "first_byte_ms": self.first_byte_ms,
            "duration_ms": self.duration_ms,
            "cost": format_dollars(self.cost_nano),
        }


class ActivityPage(msgspec.Struct, frozen=True):
    """Requests, newest first, and where the next page begins: None after the last.

    With a filter, a page may have few requests, or none, and yet have a next one: only so many are looked at for it.
    """

    rows: list[ActivityRow]
    next: ActivityPlace | None

    def shown(self) -> dict[str, Any]:
        return {"data": [row.shown() for row in self.rows], "next": str(self.next) if self.next else None}


def read_filter(span: Span, asked: Mapping[str, str]) -> ActivityFilter:
    """The filter of a query with `key`, `model` and `status`. A ValueError says what is wrong."""
    status = asked.get("status", "")
    if status and status != FAILED and not STATUS.fullmatch(status):
        raise ValueError("status: must be a number like 200, or failed: every status but 200.")
    return ActivityFilter(span, asked.get("key", "")[:100], asked.get("model", "")[:100], status)


def read_limit(text: str | None) -> int:
    if not text:
        return PAGE_DEFAULT
    if text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= PAGE_MAX:
        return int(text)
    raise ValueError(f"limit: must be a number from 1 to {PAGE_MAX}.")


def read_place(cursor: str | None) -> ActivityPlace | None:
    if not cursor:
        return None
    if found := CURSOR.fullmatch(cursor):
        return ActivityPlace(int(found[1]), found[2])
    raise ValueError("cursor: this page does not exist. Send `next` of the page before, or begin without a cursor.")
