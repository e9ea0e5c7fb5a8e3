"""Marks: how much running requests have delivered, written to the store from time to time.

After a crash, the mark is what is charged. Marking costs nothing per chunk, and nothing for short requests. A locked
account delays the marks of the others by LOCK_S at most: its own are written the next time.
"""

import asyncio
import time
from typing import Protocol

import msgspec
from sqlalchemy import text

from cadenza.core.records import Usage
from cadenza.ledger.rules import OpenHold
from cadenza.ledger.transaction import UNMARK
from cadenza.store.statements import Statement
from cadenza.store.store import Store, StoreBusy, Transaction

BRIEF_MARKS = 100
MARKS_AT_ONCE = 500  # in one transaction
LOCK_S = 0.1
COUNTED_IN_A_ROW = 50  # then other tasks get their turn
MARK = Statement(
    text(
        "INSERT INTO marks (completion_id, request_id, process, account_id, key_id, class_id, prompt_tokens,"
        " delivered_tokens, input_nano, output_nano, cached_input_nano, stream, started_at)"
        " SELECT CAST(:completion_id AS TEXT), CAST(:request_id AS TEXT), name, CAST(:account_id AS TEXT),"
        " CAST(:key_id AS TEXT), CAST(:class_id AS TEXT), CAST(:prompt_tokens AS INTEGER),"
        " CAST(:delivered_tokens AS INTEGER), CAST(:input_nano AS BIGINT), CAST(:output_nano AS BIGINT),"
        " CAST(:cached_input_nano AS BIGINT), CAST(:stream AS BOOLEAN), CAST(:started_at AS BIGINT)"
        " FROM processes WHERE name = :process AND beats >= 0"  # a process that is being swept marks nothing
        " ON CONFLICT (completion_id) DO UPDATE"
        " SET prompt_tokens = excluded.prompt_tokens, delivered_tokens = excluded.delivered_tokens"
    )
)


class Delivery(Protocol):
    """What a running request has delivered so far."""

    @property
    def has_delivered(self) -> bool: ...

    async def count(self) -> Usage:
        """Count the tokens of the prompt and of what was delivered."""


class Tracked(msgspec.Struct):
    """A running request, how many of its tokens are marked, and whether the store may have a mark of it."""

    hold: OpenHold
    delivery: Delivery
    since_s: float
    marked_tokens: int = 0
    may_have_mark: bool = False


class Marks:
    """The running requests of this process whose deliveries are marked."""

    def __init__(self, store: Store, mark_after_s: float) -> None:
        self._store = store
        self._mark_after_s = mark_after_s
        self._tracked: dict[str, Tracked] = {}

    def track(self, hold: OpenHold, delivery: Delivery) -> None:
        self._tracked[hold.completion_id] = Tracked(hold, delivery, time.monotonic())

    def forget(self, completion_id: str) -> bool:
        """The request has ended. Whether it may have a mark."""
        tracked = self._tracked.pop(completion_id, None)
        return tracked is not None and tracked.may_have_mark

    async def write(self, process: str) -> None:
        """Mark what long-running requests have delivered since their last mark."""
        counted = await self._count()
        names = [*counted]
        for begin in range(0, len(names), MARKS_AT_ONCE):
            rows = list[dict[str, object]]()
            for completion_id in names[begin : begin + MARKS_AT_ONCE]:
                if tracked := self._tracked.get(completion_id):
                    tracked.may_have_mark = True
                    rows.append(_mark_row(tracked.hold, counted[completion_id], process))
            if rows:
                await self._after_write(await self._write_rows(rows), counted)

    async def _write_rows(self, rows: list[dict[str, object]]) -> list[str]:
        """Write marks in one transaction or, if something is locked, those of each account in its own.

        Return the completion ids of those that were written.
        """
        is_brief = len(rows) < BRIEF_MARKS
        try:
            await self._store.transact(lambda tx: tx.change_each(MARK, rows), is_brief=is_brief, lock_s=LOCK_S)
        except StoreBusy:
            by_account: dict[object, list[dict[str, object]]] = {}
            for row in rows:
                by_account.setdefault(row["account_id"], []).append(row)
            if len(by_account) == 1:
                return []
            return [name for of_account in by_account.values() for name in await self._write_rows(of_account)]
        return [str(row["completion_id"]) for row in rows]

    async def _after_write(self, written: list[str], counted: dict[str, Usage]) -> None:
        ended = [completion_id for completion_id in written if completion_id not in self._tracked]
        for completion_id in written:
            if tracked := self._tracked.get(completion_id):
                tracked.marked_tokens = counted[completion_id].completion_tokens
        if ended:
            await self._store.transact(lambda tx: unmark(tx, ended), is_brief=True)

    async def _count(self) -> dict[str, Usage]:
        """Count what has been delivered, by completion id."""
        now_s, counted = time.monotonic(), dict[str, Usage]()
        for number, (completion_id, tracked) in enumerate(list(self._tracked.items())):
            if number % COUNTED_IN_A_ROW == 0:
                await asyncio.sleep(0)
            if now_s - tracked.since_s >= self._mark_after_s and tracked.delivery.has_delivered:
                usage = await tracked.delivery.count()
                if usage.completion_tokens > tracked.marked_tokens:
                    counted[completion_id] = usage
        return counted


def unmark(tx: Transaction, completion_ids: list[str]) -> None:
    """Delete the marks of requests that ended while they were being marked."""
    tx.change_each(UNMARK, [{"completion": one} for one in completion_ids])


def _mark_row(hold: OpenHold, usage: Usage, process: str) -> dict[str, object]:
    return {
        "completion_id": hold.completion_id,
        "request_id": hold.request_id,
        "process": process,
        "account_id": hold.account_id,
        "key_id": hold.key_id,
        "class_id": hold.class_id,
        "prompt_tokens": usage.prompt_tokens,
        "delivered_tokens": usage.completion_tokens,
        "input_nano": hold.input_nano,
        "output_nano": hold.output_nano,
        "cached_input_nano": hold.cached_input_nano,
        "stream": hold.stream,
        "started_at": hold.started_at,
    }
