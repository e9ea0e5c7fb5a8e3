"""A deadline: it expires once, at the moment that was set last, and costs one timer however often it is moved."""

import asyncio
import math
from collections.abc import Callable

import pytest

from cadenza.http.flow import Deadline
from tests.unit.upstreams.clock import Clock


class Expiries:
    """Counts how often a deadline expired."""

    def __init__(self) -> None:
        self.count = 0
        self.happened = asyncio.Event()
        self.deadline = Deadline(asyncio.get_running_loop(), self._expire)

    def _expire(self) -> None:
        self.count += 1
        self.happened.set()


async def test_it_is_moved_later(clock: Clock) -> None:
    """The earlier moment passes without effect."""
    expiries = Expiries()
    expiries.deadline.set_after(10)
    expiries.deadline.set_after(30)
    await clock.leap(20)
    assert expiries.count == 0
    await clock.leap(11)
    assert expiries.count == 1


async def test_it_is_moved_earlier(clock: Clock) -> None:
    """The earlier moment counts, and the later one passes without effect."""
    expiries = Expiries()
    expiries.deadline.set_after(30)
    expiries.deadline.set_after(10)
    await clock.leap(11)
    assert expiries.count == 1
    await clock.leap(30)
    assert expiries.count == 1


@pytest.mark.parametrize(("end", "later"), [(Deadline.clear, 1), (Deadline.close, 0)])
async def test_it_is_cleared(clock: Clock, end: Callable[[Deadline], None], later: int) -> None:
    """A deadline that was cleared or closed does not expire. One that was cleared may be set again."""
    expiries = Expiries()
    expiries.deadline.set_after(10)
    end(expiries.deadline)
    assert expiries.deadline.at_s == math.inf
    await clock.leap(20)
    assert expiries.count == 0
    expiries.deadline.set_after(10)
    await clock.leap(11)
    assert expiries.count == later


async def test_moving_it_makes_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One timer serves any number of later moments."""
    loop = asyncio.get_running_loop()
    timers = list[float]()
    call_at = loop.call_at

    def count_timer(when_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        timers.append(when_s)
        return call_at(when_s, callback)

    monkeypatch.setattr(loop, "call_at", count_timer)
    deadline = Deadline(loop, lambda: None)
    for later_s in range(1000):
        deadline.set_after(100 + later_s)
        deadline.clear()
    deadline.close()
    assert len(timers) == 1
