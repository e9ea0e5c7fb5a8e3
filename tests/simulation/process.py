"""One simulated process of the service: the real presence, ledger, key cache and limits, on its own event loop."""

import asyncio
import io
from collections.abc import Callable
from random import Random
from typing import Literal

from cadenza.fleet.key_cache import KeyCache
from cadenza.fleet.presence import Host, Presence
from cadenza.ledger.timing import LedgerTiming
from cadenza.observe import Observer, make_log
from cadenza.store.store import Store, StoreUnavailable
from tests.simulation.holds import WatchedLedger
from tests.simulation.limits import LimitWatch, ProcessLimits
from tests.simulation.network import Link
from tests.simulation.postgres import PostgresServer, SimulatedPostgresStore
from tests.simulation.scheduler import Scheduler, VirtualLoop
from tests.simulation.sqlite import SimulatedSqliteStore, SqliteFile
from tests.simulation.themes import FaultKind
from tests.simulation.valkey import SimulatedValkey

State = Literal["starting", "serving", "draining", "gone"]
THAW_S = 2.5  # how long after a pause of all its clocks a process may take itself for fresh
TIMING = LedgerTiming(idle_s=4.0)  # so that a run has reserves that are kept, and ends without any
START_PAUSE_S = 0.5  # before a process that could not start is started again


class Machine:
    """What all processes run on: the virtual time, one database, and the time of day."""

    def __init__(
        self, scheduler: Scheduler, random: Random, server: PostgresServer | SqliteFile, start_ms: int
    ) -> None:
        self.scheduler = scheduler
        self.random = random
        self.server = server
        self.start_ms = start_ms
        self.names = 0
        self.valkey: SimulatedValkey | None = None
        self.limits: LimitWatch | None = None

    def open_store(self, loop: VirtualLoop, link: Link) -> Store:
        """The store as a program on this event loop sees it."""
        if isinstance(self.server, SqliteFile):
            return SimulatedSqliteStore(self.server, loop)
        return SimulatedPostgresStore(self.server, link)

    def new_name(self) -> str:
        self.names += 1
        return f"proc_{self.names}"


class Process:
    """A process from its start to its end. When it dies, another one takes its place."""

    def __init__(self, machine: Machine, number: int, incarnation: int) -> None:
        scheduler = machine.scheduler
        self.name = f"process {number}.{incarnation}"
        self.loop = VirtualLoop(scheduler, self.name)  # type: ignore[abstract]
        self.link = Link(scheduler, self.loop, Random(f"{machine.random.random()} {self.name}"))
        self.state: State = "starting"
        self.clock_ms = 0  # how far its time of day is off
        self.thawed_s = -100.0  # when it last went on after a pause in which all of its clocks stood still
        self._machine = machine
        self._boot_lag_s = 0.0
        self._pauses: list[FaultKind] = []  # those that are not over
        self._passed_s = 0.0  # when one of them last began or ended
        self.loop.inside(self._build)

    def _build(self) -> None:
        machine = self._machine
        self.store = machine.open_store(self.loop, self.link)
        host = Host(elapsed_s=self._elapsed_s, now_ms=self.now_ms, new_name=machine.new_name)
        self.presence = Presence(self.store, host=host)
        self.log = io.StringIO()
        self.observer = Observer(make_log(self.log))
        self.ledger = WatchedLedger(self.store, self.observer, self.presence, TIMING)
        self.ledger.process = self
        self.key_cache = KeyCache(self.store, self.presence)
        self.limits: ProcessLimits | None = None
        if machine.valkey and machine.limits:
            link = Link(machine.scheduler, self.loop, Random(f"{machine.random.random()} {self.name}"))
            self.limits = ProcessLimits(machine.limits, machine.valkey, link, machine.new_name(), self.observer)

    def now_ms(self) -> int:
        return self._machine.start_ms + self.clock_ms + round(self._machine.scheduler.now_s * 1000)

    @property
    def is_thawing(self) -> bool:
        """Whether it may take itself for fresh, because its clocks stood still."""
        return self._machine.scheduler.now_s - self.thawed_s <= THAW_S

    def start(self, on_failure: Callable[[], None]) -> None:
        self.loop.start(self._start(on_failure))

    async def _start(self, on_failure: Callable[[], None]) -> None:
        try:
            await self.presence.start()
            await self.ledger.start()
            if self.limits:
                await self.limits.start()
        except StoreUnavailable:
            self.die()
            self._machine.scheduler.after(START_PAUSE_S, on_failure)
        else:
            self.state = "serving"

    async def drain(self, until_idle: Callable[[], bool]) -> None:
        """Stop as the service does: wait for the running requests, then for the ledger."""
        self.state = "draining"
        until_s = self.loop.time() + 20
        while not until_idle() and self.loop.time() < until_s:  # noqa: ASYNC110 as the service does
            await asyncio.sleep(0.05)
        await self.ledger.stop()
        await self.presence.stop()
        if self.limits:
            await self.limits.stop()
        self.die()

    def die(self, *, is_machine_lost: bool = False) -> None:
        """Kill it. The kernel closes its connections, unless the machine is gone too."""
        self.state = "gone"
        self.loop.kill()
        if isinstance(self.store, SimulatedSqliteStore):
            self.store.lost()
        for link in [self.link, *([self.limits.link] if self.limits else [])]:
            if is_machine_lost:
                link.cut()
            else:
                link.break_all()

    def pause(self, kind: FaultKind) -> None:
        self._pass_pause()
        self._pauses.append(kind)
        self.loop.pause()

    def resume(self, kind: FaultKind) -> None:
        """A pause ends. The process goes on when all that overlap have ended."""
        self._pass_pause()
        self._pauses.remove(kind)
        if not self._pauses and not self.loop.is_dead:
            self.loop.resume()

    def _pass_pause(self) -> None:
        """Set back the clocks that stood still since the last pause began or ended: once, however many overlap."""
        now_s = self._machine.scheduler.now_s
        passed_s, self._passed_s = now_s - self._passed_s, now_s
        if "sleep" in self._pauses or "freeze" in self._pauses:
            self.loop.lose(passed_s)
        if "freeze" in self._pauses:
            self._boot_lag_s += passed_s
            self.thawed_s = now_s

    def _elapsed_s(self) -> float:
        return self._machine.scheduler.now_s - self._boot_lag_s
