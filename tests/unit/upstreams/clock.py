"""The clock of asyncio's own loop, which a test can put forward: what takes a minute is over at once."""

import asyncio

import pytest

TURNS = 20  # of the loop: enough for a timer to fire and for all that it ends to end


class Clock:
    """Timers of the loop go by it; only it leaps, nothing else of the loop is changed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
        real_time = loop.time
        self._ahead_s = 0.0
        monkeypatch.setattr(loop, "time", lambda: real_time() + self._ahead_s)

    async def leap(self, leap_s: float) -> None:
        self._ahead_s += leap_s
        for _ in range(TURNS):
            await asyncio.sleep(0)
