"""What is gathered in memory and written to the store from time to time, off the way of a request."""

import asyncio
from contextlib import suppress


class PeriodicWriter:
    """Calls `write` every `every_s` seconds from `start`, and once more at `stop`."""

    every_s: float
    _writing: asyncio.Task[None] | None = None

    async def write(self) -> None:
        """Write what was gathered. A store that does not answer must not raise here: it delays what waits."""
        raise NotImplementedError

    def start(self) -> None:
        self._writing = asyncio.create_task(self._write_forever())

    async def stop(self) -> None:
        if self._writing:
            self._writing.cancel()
            with suppress(asyncio.CancelledError):
                await self._writing
        await self.write()

    async def _write_forever(self) -> None:
        while True:
            await asyncio.sleep(self.every_s)
            await self.write()
