"""Whether the store takes writes, for the readiness of the service: a store that can be read may have a full disk."""

import asyncio

from cadenza.observe import Log
from cadenza.store.store import Store, StoreUnavailable, check_write


class WriteCheck:
    """Whether the store takes writes. It is tried at most once in `every_s`, however often it is asked."""

    def __init__(self, store: Store, log: Log, every_s: float = 1.0, wait_s: float = 1.5) -> None:
        self._store = store
        self._log = log
        self._every_s = every_s
        self._wait_s = wait_s
        self._trial: asyncio.Task[str | None] | None = None
        self._ended_s = 0.0
        self._reason: str | None = None  # that the log has

    async def problem(self) -> str | None:
        """What to do, if the store takes no write; None if it does."""
        loop = asyncio.get_running_loop()
        if self._trial is None or (self._trial.done() and loop.time() - self._ended_s >= self._every_s):
            self._trial = loop.create_task(self._try())
        await asyncio.wait([self._trial], timeout=self._wait_s)
        if not self._trial.done() or self._trial.result():
            return f"the store takes no write: {self._store.write_advice}, and run 'cadenza doctor'"
        return None

    async def _try(self) -> str | None:
        reason = None
        try:
            await check_write(self._store)
        except StoreUnavailable as error:
            reason = str(error)
        if reason and reason != self._reason:
            self._log.warning("the store takes no write", reason=reason)
        self._reason = reason
        self._ended_s = asyncio.get_running_loop().time()
        return reason
