"""The network between a simulated process and a server: messages take time, wait while it is cut, and may be lost."""

from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.scheduler import Scheduler, VirtualLoop

LOST_AFTER_S = 5.0  # then either side gives up a connection whose packets are not acknowledged
TRIP_LEAST_S, TRIP_SPREAD_S = 0.0001, 0.0007

Arrive = Callable[..., object]


class Link:
    """The way from one process to a server. While it is cut, messages wait: packets are sent again."""

    def __init__(self, scheduler: Scheduler, loop: VirtualLoop, random: Random) -> None:
        self.scheduler = scheduler
        self.loop = loop
        self.slowness = 1.0
        self.wires: set[Wire] = set()
        self.on_heal: list[Callable[[], None]] = []
        self.is_cut = False
        self.sent = 0  # messages to the server
        self.trap: tuple[int, Callable[[], None]] | None = None  # what happens when this many were sent
        self._random = random.random
        self._cuts = 0

    def trip_s(self) -> float:
        return (TRIP_LEAST_S + TRIP_SPREAD_S * self._random()) * self.slowness

    def cut(self) -> None:
        self.is_cut = True
        self._cuts += 1
        self.scheduler.after(LOST_AFTER_S, self._give_up, self._cuts)

    def heal(self) -> None:
        self.is_cut = False
        for wire in sorted(self.wires, key=lambda one: one.number):
            wire.deliver_held()

    def _give_up(self, cut: int) -> None:
        if self.is_cut and cut == self._cuts:
            self.break_all()

    def break_all(self) -> None:
        """Both sides of every connection find it lost."""
        for wire in sorted(self.wires, key=lambda one: one.number):
            wire.break_off()


class Wire:
    """One connection over a link: two directions, each in order."""

    numbers = 0

    def __init__(self, link: Link, on_lost_here: Callable[[], None], on_lost_there: Callable[[], None]) -> None:
        link.wires.add(self)
        Wire.numbers += 1
        self.number = Wire.numbers
        self.is_broken = False
        self._link = link
        self._lost_here, self._lost_there = on_lost_here, on_lost_there
        self._last_s = [0.0, 0.0]
        self._held: list[tuple[int, Arrive, tuple[Any, ...]]] = []

    def to_server(self, work_s: float, arrive: Arrive, *args: Any) -> None:
        """Send a message; `arrive` is called when the server has received it and worked on it."""
        link = self._link
        link.sent += 1
        self._send(0, work_s, arrive, args)
        if link.trap and link.sent >= link.trap[0]:
            _, spring = link.trap
            link.trap = None
            link.scheduler.after(link.trip_s(), spring)

    def to_client(self, arrive: Arrive, *args: Any) -> None:
        """Send a message back. While the process is paused, it waits in the process's socket."""
        self._send(1, 0.0, arrive, args)

    def _send(self, way: int, work_s: float, arrive: Arrive, args: tuple[Any, ...]) -> None:
        if self.is_broken:
            return
        link = self._link
        when_s = link.scheduler.now_s + link.trip_s() + work_s
        if when_s <= self._last_s[way]:
            when_s = self._last_s[way] + 1e-9
        self._last_s[way] = when_s
        link.scheduler.at(when_s, self._arrive, way, arrive, args)

    def _arrive(self, way: int, arrive: Arrive, args: tuple[Any, ...]) -> None:
        if self.is_broken:
            return
        link = self._link
        if link.is_cut or self._held:
            self._held.append((way, arrive, args))
        elif way == 1 and link.loop.is_paused:
            link.loop.call_soon(arrive, *args)
        else:
            arrive(*args)

    def deliver_held(self) -> None:
        held, self._held = self._held, []
        for way, arrive, args in held:
            self._link.scheduler.after(0.0, self._arrive, way, arrive, args)

    def break_off(self, *, here: bool = True, there: bool = True) -> None:
        """The connection is lost: messages on the way are not delivered."""
        self.is_broken = True
        self._link.wires.discard(self)
        if there:
            self._lost_there()
        if here:
            self._link.loop.call_soon(self._lost_here)
