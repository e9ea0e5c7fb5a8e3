"""Rates and slots over all processes, in a simulated Valkey, and their rules.

- A key gets no more than its rate, and one burst more for each fault (or one request for each process, if that is
  more). A process that is cut off from Valkey grants its share beside what Valkey grants to the others.
- While nothing is wrong, a key is refused only beyond its rate, and no more slots are taken than there are.
- No request waits for Valkey. Once everything has ended, all slots are free.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from cadenza.core.errors import RateLimited
from cadenza.core.rates import Rate
from cadenza.gateway.slots import Slots, wait_for_slot
from cadenza.observe import Observer
from cadenza.parts.valkey.state import ValkeyState
from tests.simulation.network import Link
from tests.simulation.themes import OF_VALKEY, FaultKind
from tests.simulation.valkey import SimulatedValkey

if TYPE_CHECKING:
    from tests.simulation.clients import Chat
    from tests.simulation.world import World

URL = "valkey://valkey"
ASKED_S_MAX = 0.15  # how long a request waits for Valkey at most: a trip, and the moment of grace
SLACK = 2  # tickets: when a ticket is granted and when it arrives differ
SETTLED_S = 6.0  # so long after a start, all processes share
AFTER_FAULT_S = 15.0  # and so long after a fault
CUT_OFF: tuple[FaultKind, ...] = ("cut valkey", "slow valkey")


class PlannedLimits(msgspec.Struct, frozen=True):
    """The rate of every key, and the slots of all processes."""

    rate: Rate
    slots: int


class ProcessLimits:
    """The limits of one process: the real client of Valkey, and the real slots."""

    def __init__(self, watch: "LimitWatch", server: SimulatedValkey, link: Link, name: str, observer: Observer) -> None:
        loop = link.loop
        loop.hosts["valkey"] = partial(server.connect, link)
        self.link = link
        self._watch = watch
        self._metrics = observer.metrics
        self._state = ValkeyState(URL, watch.processes, observer, name=name, now_s=loop.time)
        self.slots = Slots(watch.planned.slots, lender=self._state.lender, now_s=loop.time)

    async def start(self) -> None:
        await self._state.start()

    async def stop(self) -> None:
        await self._state.stop()

    @asynccontextmanager
    async def admit(self, chat: "Chat") -> AsyncIterator[None]:
        """429 if the key is beyond its rate, or no slot is free."""
        rate, now_s = self._watch.planned.rate, asyncio.get_running_loop().time
        began_s = now_s()
        self._watch.asked(chat)
        ticket = await self._state.rates.take(chat.key_id, rate)
        self._watch.answered(chat, now_s() - began_s, is_granted=ticket.is_granted)
        chat.is_limited = True
        if not ticket.is_granted:
            raise RateLimited("Too many requests.", ticket.wait_s)
        if not self.slots.take(chat.key_id):
            await wait_for_slot(self.slots, chat.key_id, self._metrics)
        try:
            chat.is_limited = False
            self._watch.entered()
            yield
        finally:
            self.slots.leave(chat.key_id)


class LimitWatch:
    """Judges what the processes grant."""

    def __init__(self, world: "World", planned: PlannedLimits) -> None:
        self.planned = planned
        self.processes = world.plan.processes
        self._world = world
        self._asked_s: dict[str, dict[str, float]] = defaultdict(
            dict
        )  # tickets of each key without an answer, and since
        self._levels: dict[str, float] = defaultdict(float)  # tickets of each key that its rate has not made good yet
        self._granted_s: dict[str, list[float]] = defaultdict(list)
        self._awake_s = 0.0  # when the last fault of a process has ended
        self._extra = 0.0  # what faults may have given to every key
        self._span_s = planned.rate.burst / planned.rate.per_s
        self._shared_s = SETTLED_S + self._span_s  # from then on, Valkey knows what each key has used, and no more

    def fault_began(self, kind: FaultKind, lasts_s: float) -> None:
        self._shared_s = self._world.scheduler.now_s + lasts_s + AFTER_FAULT_S + self._span_s
        self._extra += max(self.planned.rate.burst, self.processes)
        if kind not in OF_VALKEY:
            self._awake_s = self._world.scheduler.now_s + lasts_s + 1.0
        if kind in CUT_OFF:
            self._extra += self.planned.rate.per_s / self.processes * (lasts_s + SETTLED_S)

    def asked(self, chat: "Chat") -> None:
        self._asked_s[chat.key_id][chat.completion_id] = self._world.scheduler.now_s

    def answered(self, chat: "Chat", waited_s: float, *, is_granted: bool) -> None:
        checks, now_s, key_id = self._world.checks, self._world.scheduler.now_s, chat.key_id
        del self._asked_s[key_id][chat.completion_id]
        name = f"{chat.completion_id} on {chat.process.name}, {key_id}"
        if is_granted:
            self._check_granted(key_id, name)
        elif now_s > self._shared_s:
            lately = [at_s for at_s in self._granted_s[key_id] if at_s > now_s - self._span_s]
            lately += [
                at_s for at_s in self._asked_s[key_id].values() if at_s > now_s - ASKED_S_MAX
            ]  # some are granted
            if len(lately) < self.planned.rate.burst - SLACK - self.planned.rate.per_s * ASKED_S_MAX:
                checks.fail("a key gets its rate", f"{name}: {len(lately)} in {self._span_s:.2f} s")
        if waited_s > ASKED_S_MAX and now_s > self._awake_s:
            checks.fail("no request waits for Valkey", f"{name}: {waited_s:.3f} s")

    def _check_granted(self, key_id: str, name: str) -> None:
        now_s, rate, granted_s = self._world.scheduler.now_s, self.planned.rate, self._granted_s[key_id]
        passed_s = now_s - granted_s[-1] if granted_s else 0.0
        granted_s.append(now_s)
        level = self._levels[key_id] = max(0.0, self._levels[key_id] - passed_s * rate.per_s) + 1
        if level > rate.burst + SLACK + self._extra:
            self._world.checks.fail("no key gets more than its rate", f"{name}: {level:.1f} of {rate.burst}")

    def entered(self) -> None:
        world = self._world
        live = [process for process in world.processes if process.state != "gone"]
        taken = [process.limits.slots.taken for process in live if process.limits]
        now_s = world.scheduler.now_s
        if sum(taken) > self.planned.slots and now_s > SETTLED_S and not world.checks.was_disturbed(now_s):
            world.checks.fail("no more slots are taken than there are", f"{taken} of {self.planned.slots}")

    def at_end(self) -> None:
        for process in self._world.processes:
            if process.limits and process.limits.slots.taken:
                detail = f"{process.name}: {process.limits.slots.taken} are taken"
                self._world.checks.fail("all slots are free at the end", detail)
