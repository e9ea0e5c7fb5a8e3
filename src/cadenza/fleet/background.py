"""What a process does in the background: the one loop that repeats work, and the one that follows notifications.

Work that fails does not end its loop. A store that does not answer is logged, at most once a minute; of any other error
the log has the places, because its text could quote content. Both are tried again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager

from cadenza.observe import Log, places
from cadenza.store.store import StoreRefused, StoreUnavailable

RETRY_S = 0.25
Work = Callable[[], Awaitable[object]]


@asynccontextmanager
async def running(loop: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run a loop beside the block, and cancel it at the end."""
    task = asyncio.create_task(loop)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def repeat(work: Work, period_s: float, log: Log, *, at_once: bool = False) -> None:
    """Do the work every `period_s` seconds, until cancelled; `at_once`: also before the first pause."""
    if at_once:
        await _try(work, log)
    while True:
        await asyncio.sleep(period_s)
        await _try(work, log)


async def follow(changed: asyncio.Event, work: Work, log: Log) -> None:
    """Do the work after each notification, until cancelled, and again if it failed. Several may be one."""
    while True:
        await changed.wait()
        changed.clear()
        if not await _try(work, log):
            changed.set()
            await asyncio.sleep(RETRY_S)


async def _try(work: Work, log: Log) -> bool:
    try:
        await work()
    except (StoreUnavailable, StoreRefused) as error:
        log.repeated("the store did not answer work in the background", reason=str(error))
    except Exception as error:  # noqa: BLE001 the loop goes on, and the log says where it failed
        log.error("internal error", places=places(error))
    else:
        return True
    return False
