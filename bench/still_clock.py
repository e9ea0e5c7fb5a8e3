"""`cadenza` in a process for which time stands still: `python -m bench.still_clock serve ...`

A program under valgrind runs fifty times slower, and its clocks do not. So what runs every few milliseconds would be a
tenth of the count of each request, more on a busy machine; and a reserve of credit would be given back between two
rounds, as after a second without requests, so that the next round pays for a commit more. There is no garbage
collection, which comes in some rounds.
"""

import asyncio
import gc
import time
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

import uvloop

from cadenza.cli import main

SLOWER = 100_000
BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # not imported: older commits run here too

Ts = TypeVarTuple("Ts")


class SlowTimersLoop(uvloop.Loop):
    """What waits for time waits longer than a run. Input, output and threads are as fast as ever."""

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return super().call_later(SLOWER * delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_later(max(0.0, when - self.time()), callback, *args, context=context)


if __name__ == "__main__":
    gc.disable()
    vars(time)["clock_gettime"] = {BOOT_CLOCK: time.clock_gettime(BOOT_CLOCK)}.__getitem__  # the clock of the ledger
    vars(uvloop)["Loop"] = SlowTimersLoop  # `uvloop.run` makes its loop of this class
    main()
