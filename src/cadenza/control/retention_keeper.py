"""Applies the limits of [retention], in small batches. Every process tries; the one that claims a kind of rows works on
it, and the others skip it.

Of old requests the sums by day stay (ledger/day_sums.py). Search results and pages are in memory only and have their
own timers. Erasures that a process did not finish are continued here, too. A
store that fails is logged, and asked again later.
"""

import asyncio
from functools import partial
from typing import Literal

import msgspec

from cadenza import clock
from cadenza.control.account.erasure import finish_erasures
from cadenza.core.retention_limits import RetentionLimits
from cadenza.core.spans import DAY_MS
from cadenza.fleet.background import repeat
from cadenza.observe import Log
from cadenza.store.statements import Values
from cadenza.store.store import Store
from cadenza.store.tables import expired_rows
from cadenza.store.tables.expired_rows import Kept
from cadenza.store.tables.metered import first_id

POLL_INTERVAL_S = 600.0
ERASE_EVERY_S = 60.0
TURN_MS = 30 * 60 * 1000  # a kind of rows that was worked on in this time is claimed: others skip it
SLICE_ROWS = 200  # some milliseconds of database time
PAUSE_S = 0.05  # between batches: requests go first


class RetentionKeeper:
    """Removes what is older than the limits. `pause_s` is how long it waits between two batches."""

    def __init__(self, store: Store, limits: RetentionLimits, log: Log, pause_s: float = PAUSE_S) -> None:
        self._store = store
        self._limits = limits
        self._log = log
        self._pause_s = pause_s

    async def run(self) -> None:
        """Finish erasures, and then every few minutes also remove what is too old, until cancelled."""
        await asyncio.gather(
            repeat(lambda: finish_erasures(self._store), ERASE_EVERY_S, self._log, at_once=True),
            repeat(lambda: self.poll(clock.now_ms()), POLL_INTERVAL_S, self._log),
        )

    async def poll(self, now_ms: int) -> dict[Kept, int]:
        """Remove what is too old, unless another process does it. How many rows of each kind were removed."""
        limits = self._limits
        ends = {"now": now_ms, "idle": now_ms - limits.session_idle_ms, "began": now_ms - limits.session_ms}
        removed = dict.fromkeys(expired_rows.REMOVALS, 0)
        removed["sessions"] = await self._remove("sessions", now_ms, ends)
        removed["links"] = await self._remove("links", now_ms, ends)
        if limits.audit_event_days is not None:
            before_ms = now_ms - limits.audit_event_days * DAY_MS
            removed["audit_events"] = await self._remove_before("audit_events", now_ms, before_ms)
        if limits.usage_days is not None:
            before_ms = (now_ms // DAY_MS - limits.usage_days) * DAY_MS  # whole days
            removed["usage"] = await self._remove_before("usage", now_ms, before_ms)
        if any(removed.values()):
            self._log.info("what is older than the limits was removed", **removed)
        return removed

    async def _remove_before(self, name: Literal["audit_events", "usage"], now_ms: int, before_ms: int) -> int:
        """What is older, of rows of which the store says how far the limit has come."""
        if not await self._claim(name, now_ms):
            return 0
        await self._store.transact(lambda tx: expired_rows.keep_from(tx, name, before_ms))
        is_usage = name == "usage"
        end = first_id(before_ms) if is_usage else await expired_rows.first_kept_event(self._store, before_ms)
        return await self._remove_all(name, {"before": before_ms, "end": end})

    async def _remove(self, name: Kept, now_ms: int, values: Values) -> int:
        return await self._remove_all(name, values) if await self._claim(name, now_ms) else 0

    async def _remove_all(self, name: Kept, values: Values) -> int:
        """All batches of one kind of rows."""
        removed = 0
        async for rows in expired_rows.batches(self._store, name, values, SLICE_ROWS):
            await self._store.transact(partial(expired_rows.remove, name=name, rows=rows))
            removed += len(rows)
            await self._pause(name)
        return removed

    async def _claim(self, name: Kept, now_ms: int) -> bool:
        return await self._store.transact(lambda tx: expired_rows.claim(tx, name, now_ms, TURN_MS))

    async def _pause(self, name: Kept) -> None:
        """Let requests go first, and keep the claim."""
        await asyncio.sleep(self._pause_s)
        now_ms = clock.now_ms()
        await self._store.transact(lambda tx: expired_rows.keep_turn(tx, name, now_ms), is_single=True)


class KeptRow(msgspec.Struct, frozen=True):
    """Something that is kept for a time: when its oldest row is from, and the limit, if there is one."""

    name: str
    oldest_at: int | None
    limit_ms: int | None


async def read_kept(store: Store, limits: RetentionLimits) -> list[KeptRow]:
    """The oldest row of everything that has a limit."""
    days = {"requests": limits.usage_days, "audit events": limits.audit_event_days, "sessions": limits.session_days}
    in_ms = {name: count * DAY_MS for name, count in days.items() if count is not None}
    return [KeptRow(name, at, in_ms.get(name)) for name, at in (await expired_rows.read_oldest(store)).items()]
