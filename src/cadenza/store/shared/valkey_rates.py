"""Rates over all processes, in Valkey: the tickets of one turn of the event loop are taken in one trip.

Stance on failure: without Valkey this process gives tickets by itself, at its share of each rate.
"""

import asyncio
from collections.abc import Callable

from cadenza.core.rates import STEP_NS_MAX, Rate, Ticket
from cadenza.store.shared.link import PREFIX, Link, Script
from cadenza.store.shared.memory import MemoryRates
from cadenza.store.shared.wire import Answer, Part

Grant = tuple[int, int]  # whether the ticket is granted, and the nanoseconds until the whole burst is available


class ValkeyRates:
    """The rates of one kind of name. `processes` returns how many processes share them."""

    def __init__(self, link: Link, kind: str, processes: Callable[[], int]) -> None:
        self._link = link
        self._prefix = f"{PREFIX}{kind}:"
        self._processes = processes
        self._script = Script.read("rates.lua")
        self._alone = MemoryRates()
        self._keys: list[str] = []
        self._arguments: list[Part] = []
        self._waiting: list[asyncio.Future[Grant | None] | None] = []

    async def take(self, name: str, rate: Rate) -> Ticket:
        if self._link.is_up:
            grant: asyncio.Future[Grant | None] = asyncio.get_running_loop().create_future()
            self._add(name, rate, 1, grant)
            if (given := await grant) is not None:
                return _ticket(given, rate)
        return await self._alone.take(name, self._share(rate))

    def give_back(self, name: str, rate: Rate) -> None:
        if self._link.is_up:
            self._add(name, rate, -1, None)
        else:
            self._alone.give_back(name, self._share(rate))

    def _share(self, rate: Rate) -> Rate:
        processes = self._processes()
        return Rate(rate.per_s / processes, max(1, rate.burst // processes)) if processes > 1 else rate

    def _add(self, name: str, rate: Rate, count: int, grant: asyncio.Future[Grant | None] | None) -> None:
        if not self._keys:
            asyncio.get_running_loop().call_soon(self._send)
        self._keys.append(self._prefix + name)
        self._arguments += (rate.step_ns, _span_ns(rate), count)
        self._waiting.append(grant)

    def _send(self) -> None:
        keys, arguments, waiting = self._keys, self._arguments, self._waiting
        self._keys, self._arguments, self._waiting = [], [], []

        def answered(answer: Answer) -> None:
            for number, grant in enumerate(waiting):
                if grant is not None and not grant.done():
                    given = None if answer is None else (answer[2 * number], int(answer[2 * number + 1]))
                    grant.set_result(given)

        self._link.run(self._script, keys, arguments, answered)


def _span_ns(rate: Rate) -> int:
    return min(rate.step_ns * rate.burst, STEP_NS_MAX)


def _ticket(grant: Grant, rate: Rate) -> Ticket:
    is_granted, reset_ns = grant
    step_ns, span_ns = rate.step_ns, _span_ns(rate)
    if is_granted:
        return Ticket(is_granted=True, limit=rate.burst, remaining=(span_ns - reset_ns) // step_ns, reset_ns=reset_ns)
    wait_ns = reset_ns + step_ns - span_ns
    return Ticket(is_granted=False, limit=rate.burst, remaining=0, reset_ns=reset_ns, wait_ns=wait_ns)
