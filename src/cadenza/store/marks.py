"""Marks: how much running requests have delivered, written to their holds from time to time.

After a crash, the mark is what is charged. Marking costs nothing per chunk, and nothing for short requests.
"""

import asyncio
import time
from typing import Protocol

import msgspec

from cadenza.core.records import Usage
from cadenza.store import ledger
from cadenza.store.store import Store

BRIEF_MARKS = 100
COUNTED_IN_A_ROW = 50  # then other tasks get their turn


class Delivery(Protocol):
    """What a running request has delivered so far."""

    @property
    def has_delivered(self) -> bool: ...

    async def count(self) -> Usage:
        """Count the tokens of the prompt and of what was delivered."""


class Tracked(msgspec.Struct):
    """A running request, and how many of its tokens are marked."""

    delivery: Delivery
    since_s: float
    marked_tokens: int = 0


class Marks:
    """The running requests of this process whose deliveries are marked."""

    def __init__(self, store: Store, mark_after_s: float) -> None:
        self._store = store
        self._mark_after_s = mark_after_s
        self._tracked: dict[str, Tracked] = {}

    def track(self, completion_id: str, delivery: Delivery) -> None:
        self._tracked[completion_id] = Tracked(delivery, time.monotonic())

    def forget(self, completion_id: str) -> None:
        self._tracked.pop(completion_id, None)

    async def count(self) -> dict[str, Usage]:
        """Count what long-running requests have delivered since their last mark, by completion id."""
        now_s, counted = time.monotonic(), dict[str, Usage]()
        for number, (completion_id, tracked) in enumerate(list(self._tracked.items())):
            if number % COUNTED_IN_A_ROW == 0:
                await asyncio.sleep(0)
            if now_s - tracked.since_s >= self._mark_after_s and tracked.delivery.has_delivered:
                usage = await tracked.delivery.count()
                if usage.completion_tokens > tracked.marked_tokens:
                    counted[completion_id] = usage
        return counted

    async def write(self, counted: dict[str, Usage]) -> None:
        await self._store.transact(lambda tx: ledger.mark_delivered(tx, counted), is_brief=len(counted) < BRIEF_MARKS)
        for completion_id, usage in counted.items():
            if tracked := self._tracked.get(completion_id):
                tracked.marked_tokens = usage.completion_tokens
