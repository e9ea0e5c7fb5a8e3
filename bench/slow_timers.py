"""`cadenza` on an event loop whose timers run a thousand times slower: `python -m bench.slow_timers serve ...`

A program under valgrind runs fifty times slower, and its timers do not. So what runs every few milliseconds would be a
tenth of the count of each request, more on a busy machine. There is no garbage collection, which comes in some rounds.
"""

import asyncio
import gc
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

import uvloop

from cadenza.cli import main

SLOWER = 1000

Ts = TypeVarTuple("Ts")


class SlowTimersLoop(uvloop.Loop):
    """Only what waits for time is slower. Input, output and threads are not."""

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
    vars(uvloop)["Loop"] = SlowTimersLoop  # `uvloop.run` makes its loop of this class
    main()
