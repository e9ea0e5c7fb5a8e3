"""Erases in the background, so that a page need not wait for it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from cadenza.store.store import StoreRefused, StoreUnavailable

SOON_S = 1.0  # so that many deletions cause one checkpoint
PAUSE_S_MAX = 60.0  # during a long read, such as a backup


class Eraser:
    """Does its work once for all that was erased in the last second, and again while it returns False.

    A store that fails ends it: the retention limits come back to what is left.
    """

    def __init__(self, work: Callable[[], Awaitable[bool]]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = False

    def erase_soon(self) -> None:
        """Call it after a transaction that erased something."""
        self._is_wanted = True
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        pause_s = SOON_S
        try:
            with suppress(StoreUnavailable, StoreRefused):
                while self._is_wanted:
                    await asyncio.sleep(pause_s)
                    self._is_wanted = False
                    if not await self._work():
                        self._is_wanted = True
                        pause_s = min(2 * pause_s, PAUSE_S_MAX)
        finally:
            self._task = None
