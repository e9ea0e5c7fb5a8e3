"""Long work on the event loop, which leaves at least half of the time to requests."""

import asyncio
from types import TracebackType

from cadenza.clock import elapsed_s


class Pace:
    """`async with pace:` is a step of such work, for about a millisecond, in which nothing is awaited.

    All that share a pace take turns, and each step ends with a pause as long as it took.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._began_s = 0.0

    async def __aenter__(self) -> None:
        await self._turn.acquire()
        self._began_s = elapsed_s()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await asyncio.sleep(elapsed_s() - self._began_s)
        finally:
            self._turn.release()
