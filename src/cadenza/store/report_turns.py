"""Who may run a report: one of each account at a time, and REPORTS_MAX in a process.

An account's further reports wait for their turn, WAITING_MAX of them and WAIT_S at most. Reports without an account, of
operators and background work, leave one place free for the others.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from cadenza.store.store import ReportsBusy

REPORTS_MAX = 2
WAITING_MAX = 8
WAIT_S = 10.0


class _Queue(asyncio.Semaphore):
    """The turns of one account, and how many reports have or want one."""

    length = 0


class ReportTurns:
    """The turns of one process."""

    def __init__(self, wait_s: float = WAIT_S) -> None:
        self._wait_s = wait_s
        self._places = asyncio.Semaphore(REPORTS_MAX)
        self._queues: dict[str, _Queue] = {}  # by account, while it has reports

    @contextlib.asynccontextmanager
    async def turn(self, account_id: str) -> AsyncIterator[None]:
        """Wait for a turn and have it for the block. ReportsBusy if too many wait already, or it takes too long."""
        queue = self._queues.setdefault(account_id, _Queue(1 if account_id else REPORTS_MAX - 1))
        if account_id and queue.length > WAITING_MAX:
            raise ReportsBusy
        queue.length += 1
        try:
            async with contextlib.AsyncExitStack() as held:
                try:
                    async with asyncio.timeout(self._wait_s):
                        for turns in (queue, self._places):
                            await held.enter_async_context(turns)
                except TimeoutError:
                    raise ReportsBusy from None
                yield
        finally:
            queue.length -= 1
            if not queue.length:
                del self._queues[account_id]
