"""The event loop of a test: uvloop, as in the service, or asyncio's own, whose clock a test can move forward.

A conftest imports the hook and the fixture.
"""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

TURNS = 20  # of the loop: enough for a timer to fire and for its effects to end


class Clock:
    """Moves the time that the loop's timers see. Nothing else about the loop changes.

    A stopped clock moves only by leaps, so that a test does not depend on how long the machine takes.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch, *, is_stopped: bool = False
    ) -> None:
        real_time, started_s = loop.time, loop.time()
        self._ahead_s = 0.0
        monkeypatch.setattr(loop, "time", lambda: (started_s if is_stopped else real_time()) + self._ahead_s)

    async def leap(self, leap_s: float) -> None:
        """Move the clock forward and let the timers fire that are due by then."""
        self._ahead_s += leap_s
        for _ in range(TURNS):
            await asyncio.sleep(0)


def pytest_asyncio_loop_factories(item: pytest.Function) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Nothing can be patched in uvloop."""
    patches = {"clock", "monkeypatch"} & set(item.fixturenames)
    return {"asyncio": asyncio.SelectorEventLoop} if patches else {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A stopped clock."""
    return Clock(asyncio.get_running_loop(), monkeypatch, is_stopped=True)
