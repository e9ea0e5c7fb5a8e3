"""Marks: the last durable progress of a stream, which is what is charged if its process dies.

A mark is the number of tokens that a running request has delivered, written to the store twice a second. Unless the
tokenizer is loaded, it is an estimate by length, never of more tokens than credit was held for. Marking costs
nothing per chunk, and nothing for short requests. A locked account delays the marks of the others by LOCK_S at most;
its own are written the next time.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec
from sqlalchemy import text

from cadenza.core.records import Usage
from cadenza.ledger.rules import HeldCredit, Hold
from cadenza.ledger.transaction import UNMARK
from cadenza.store.schema import marks
from cadenza.store.statements import Statement
from cadenza.store.store import Store, StoreBusy

BRIEF_MARKS = 100
MARKS_AT_ONCE = 500  # in one transaction
LOCK_S = 0.1
COUNTED_IN_A_ROW = 50  # then other tasks get their turn
COLUMNS = {column.name: column.type for column in marks.c if column.name != "process"}
MARK = Statement(
    text(
        f"INSERT INTO marks (process, {', '.join(COLUMNS)})"  # noqa: S608 our own names
        f" SELECT name, {', '.join(f'CAST(:{name} AS {kind})' for name, kind in COLUMNS.items())}"
        " FROM processes WHERE name = :process AND beats >= 0"  # a fenced process marks nothing
        " ON CONFLICT (completion_id) DO UPDATE"
        " SET prompt_tokens = excluded.prompt_tokens, delivered_tokens = excluded.delivered_tokens"
    )
)


class Delivery(Protocol):
    """What a running request has delivered so far."""

    @property
    def has_delivered(self) -> bool: ...

    async def progress(self) -> Usage:
        """The tokens of the prompt and of what was delivered, counted or estimated."""


class OpenHold(msgspec.Struct):
    """A hold that was taken, and what its request has delivered, if that is marked."""

    hold: Hold
    held: HeldCredit
    process: str  # the name of this process when it was taken
    delivery: Delivery | None = None
    since_s: float = 0.0  # when it began to deliver
    marked_tokens: int = 0
    may_have_mark: bool = False  # the store may have a mark of it


class Marks:
    """Marks the progress of the open holds that deliver."""

    def __init__(
        self, store: Store, open_holds: Mapping[str, OpenHold], mark_after_s: float, elapsed_s: Callable[[], float]
    ) -> None:
        self._store = store
        self._open = open_holds
        self._mark_after_s = mark_after_s
        self._elapsed_s = elapsed_s

    def lose(self) -> None:
        """This process was swept: the requests that run end late, and what they owe is decided then."""
        for request in self._open.values():
            request.delivery, request.may_have_mark = None, False

    async def write(self, process: str) -> None:
        """Mark what long-running requests have delivered since their last mark."""
        counted = await self._count()
        ids = [*counted]
        for begin in range(0, len(ids), MARKS_AT_ONCE):
            rows: list[dict[str, Any]] = []
            for completion_id in ids[begin : begin + MARKS_AT_ONCE]:
                if tracked := self._tracked(completion_id):
                    tracked.may_have_mark = True
                    rows.append(_mark_row(tracked.hold, counted[completion_id], process))
            await self._after_write(await self._write_rows(rows), counted)

    async def _write_rows(self, rows: list[dict[str, Any]]) -> list[str]:
        """Write marks in one transaction or, if something is locked, in one for each account.

        Return the completion ids of those that were written.
        """
        if not rows:
            return []
        is_brief = len(rows) < BRIEF_MARKS
        try:
            await self._store.transact(lambda tx: tx.change_each(MARK, rows), is_brief=is_brief, lock_s=LOCK_S)
        except StoreBusy:
            by_account: dict[str, list[dict[str, Any]]] = {}
            for row in rows:
                by_account.setdefault(row["account_id"], []).append(row)
            if len(by_account) == 1:
                return []
            return [name for of_account in by_account.values() for name in await self._write_rows(of_account)]
        return [row["completion_id"] for row in rows]

    async def _after_write(self, written: list[str], counted: dict[str, Usage]) -> None:
        """Note what is marked, and delete the marks of requests that ended meanwhile."""
        ended = []
        for completion_id in written:
            if tracked := self._tracked(completion_id):
                tracked.marked_tokens = counted[completion_id].completion_tokens
            else:
                ended.append({"completion": completion_id})
        if ended:
            await self._store.transact(lambda tx: tx.change_each(UNMARK, ended), is_brief=True)

    async def _count(self) -> dict[str, Usage]:
        """Count what has been delivered, by completion id."""
        now_s, counted = self._elapsed_s(), dict[str, Usage]()
        tracked = [(request, request.delivery) for request in self._open.values() if request.delivery is not None]
        for number, (request, delivery) in enumerate(tracked):
            if number % COUNTED_IN_A_ROW == 0:
                await asyncio.sleep(0)
            if now_s - request.since_s >= self._mark_after_s and delivery.has_delivered:
                usage = await delivery.progress()
                if usage.completion_tokens > request.marked_tokens:
                    counted[request.hold.completion_id] = usage
        return counted

    def _tracked(self, completion_id: str) -> OpenHold | None:
        """The request, if it has not ended."""
        request = self._open.get(completion_id)
        return request if request and request.delivery is not None else None


def _mark_row(hold: Hold, usage: Usage, process: str) -> dict[str, Any]:
    """The values of MARK. A hold and its price have the names of the columns."""
    prompt_tokens = min(usage.prompt_tokens, hold.prompt_tokens)
    counted = {"prompt_tokens": prompt_tokens, "delivered_tokens": usage.completion_tokens}
    return {**msgspec.structs.asdict(hold), **msgspec.structs.asdict(hold.price), **counted, "process": process}
