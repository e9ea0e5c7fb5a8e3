"""Rates over all processes, in Valkey: the tickets of one turn of the event loop are taken in one round trip.

Stance on failure: without Valkey this process grants tickets by itself, at its share of each rate, from the last known
state. It sends Valkey that state when Valkey is back, and a Valkey that has lost its data grants nothing for
`settle_s`, in which all processes send theirs. So a loss gives a key no second burst, however often it happens.
"""

import asyncio
from collections.abc import Callable, Sequence

from cadenza.core.rates import NS_PER_S, STEP_NS_MAX, Rate, Ticket
from cadenza.fleet.shared import MemoryRates
from cadenza.parts.valkey.connection import PREFIX, Answer, Part
from cadenza.parts.valkey.link import Script, ValkeyLink, ValkeyTiming

SINCE_KEY = f"{PREFIX}since"
SENT_AT_ONCE = 500  # rates in one command: it takes Valkey some milliseconds

Grant = tuple[int, int]  # whether the ticket is granted, and the nanoseconds until the whole burst is available
Waiting = Sequence[asyncio.Future[Grant | None] | None]


class ValkeyRates:
    """The rates of one kind of name. `processes` returns the number of processes that share them."""

    def __init__(self, link: ValkeyLink, kind: str, processes: Callable[[], int], timing: ValkeyTiming) -> None:
        self._link = link
        self._prefix = f"{PREFIX}{kind}:"
        self._processes = processes
        self._settle_ms = round(timing.settle_s * 1000)
        self._script = Script.read("rates.lua")
        self._known = MemoryRates(lambda: round(link.now_s() * NS_PER_S))  # the last known state of each rate
        self._sharers = 1  # how many processes there were when Valkey last granted tickets
        self._since: Answer = None  # when the data of Valkey began
        self._is_settled = False  # whether Valkey grants tickets: not right after it lost its data
        self._keys: list[str] = []
        self._arguments: list[Part] = []
        self._waiting: list[asyncio.Future[Grant | None] | None] = []

    def take_now(self, name: str, rate: Rate) -> Ticket | None:  # noqa: ARG002 the rates of a fleet are elsewhere
        return None

    async def take(self, name: str, rate: Rate) -> Ticket:
        if self._link.is_up:
            grant: asyncio.Future[Grant | None] = asyncio.get_running_loop().create_future()
            self._add(name, (rate.step_ns, _span_ns(rate), 1), grant)
            if (given := await grant) is not None:
                self._known.note(name, given[1])
                return _ticket(given, rate)
        ticket = self._known.take_now(name, self._share(rate))
        if ticket.is_granted and self._link.is_up:
            self._add(name, (self._known.reset_ns(name), 0, 0), None)
        return ticket

    def release(self, name: str, rate: Rate) -> None:
        is_shared = self._link.is_up and self._is_settled
        self._known.release(name, rate if is_shared else self._share(rate))
        if self._link.is_up:
            self._add(name, (rate.step_ns, _span_ns(rate), -1), None)

    def send_all(self) -> None:
        """Send Valkey the state of every rate that this process knows, in case Valkey has lost it."""
        known = self._known.resets_ns()
        for start in range(0, len(known) or 1, SENT_AT_ONCE):
            part = known[start : start + SENT_AT_ONCE]
            arguments: list[Part] = [number for _, reset_ns in part for number in (reset_ns, 0, 0)]
            self._run([self._prefix + name for name, _ in part], arguments, [None] * len(part))

    def _share(self, rate: Rate) -> Rate:
        """The part of a rate that this process may grant. After a loss, Valkey counts too few processes at first."""
        processes = max(self._sharers, self._processes())
        return Rate(rate.per_s / processes, max(1, rate.burst // processes)) if processes > 1 else rate

    def _add(self, name: str, what: tuple[int, int, int], grant: asyncio.Future[Grant | None] | None) -> None:
        if not self._keys:
            asyncio.get_running_loop().call_soon(self._send)
        self._keys.append(self._prefix + name)
        self._arguments += what
        self._waiting.append(grant)

    def _send(self) -> None:
        keys, arguments, waiting = self._keys, self._arguments, self._waiting
        self._keys, self._arguments, self._waiting = [], [], []
        self._run(keys, arguments, waiting)

    def _run(self, keys: list[str], arguments: list[Part], waiting: Waiting) -> None:
        def answered(answer: Answer) -> None:
            is_settled = answer is not None and self._note_data(answer)
            for number, grant in enumerate(waiting, 1):
                if grant is not None and not grant.done():
                    given = (answer[2 * number], int(answer[2 * number + 1])) if is_settled else None
                    grant.set_result(given)

        size = 2 + 2 * len(keys)
        self._link.run(self._script, [SINCE_KEY, *keys], (self._settle_ms, *arguments), size, answered)

    def _note_data(self, answer: Answer) -> bool:
        """Return whether Valkey grants tickets. If it has lost its data, send it the state of all rates."""
        self._is_settled, since = answer[0] == 1, answer[1]
        if self._is_settled:
            self._sharers = self._processes()
        if since != self._since:
            is_first, self._since = self._since is None, since
            if not is_first:
                self.send_all()
        return self._is_settled


def _span_ns(rate: Rate) -> int:
    return min(rate.step_ns * rate.burst, STEP_NS_MAX)


def _ticket(grant: Grant, rate: Rate) -> Ticket:
    is_granted, reset_ns = grant
    step_ns, span_ns = rate.step_ns, _span_ns(rate)
    if is_granted:
        return Ticket(is_granted=True, limit=rate.burst, remaining=(span_ns - reset_ns) // step_ns, reset_ns=reset_ns)
    wait_ns = reset_ns + step_ns - span_ns
    return Ticket(is_granted=False, limit=rate.burst, remaining=0, reset_ns=reset_ns, wait_ns=wait_ns)
