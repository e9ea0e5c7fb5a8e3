"""A process that uses Valkey: `take` takes tickets as fast as it can, `hold` takes slots and keeps them."""

import asyncio
import math
import time
from multiprocessing.connection import Connection

from cadenza.core.rates import Rate
from cadenza.gateway.slots import Slots
from cadenza.observe import Observer, make_log
from cadenza.parts.valkey.link import ValkeyTiming
from cadenza.parts.valkey.state import ValkeyState

AT_ONCE = 20


async def take(line: Connection, url: str, per_s: str, burst: str, time_s: str) -> None:
    """Take tickets for a time, and then until none is left. Say how many were granted, and four monotonic times.

    They are those before the first attempt, after the first refusal, before the last attempt, and after it.
    """
    state = ValkeyState(url, 1, Observer(make_log()), ValkeyTiming(trip_s=30.0, connect_s=30.0))
    await state.start()
    assert state.is_up
    rate, granted, used_up_s = Rate(float(per_s), int(burst)), 0, math.inf
    began_s = last_s = time.monotonic()
    is_used_up = False
    while not is_used_up or last_s < began_s + float(time_s):
        last_s = time.monotonic()
        tickets = await asyncio.gather(*(state.rates.take("key", rate) for _ in range(AT_ONCE)))
        granted += sum(ticket.is_granted for ticket in tickets)
        is_used_up = not tickets[-1].is_granted
        if is_used_up:
            used_up_s = min(used_up_s, time.monotonic())
    line.send(f"{granted} {began_s} {used_up_s} {last_s} {time.monotonic()}")
    await state.stop()


async def hold(line: Connection, url: str, limit: str, count: str, lease_s: str) -> None:
    state = ValkeyState(url, 1, Observer(make_log()), ValkeyTiming(trip_s=30.0, connect_s=30.0, lease_s=float(lease_s)))
    slots = Slots(int(limit), wait_s=30.0, lender=state.lender)
    await state.start()
    held = [await slots.enter("key_of_the_process") for _ in range(int(count))]
    line.send(f"{sum(held)}")
    await asyncio.Event().wait()
