"""Virtual time, and one event loop for each simulated process. There are no threads, no sockets and no real time.

Everything that happens is an event at a virtual time. An event loop runs its callbacks in the order of a real one; the
order in which the loops get their turns, and how long everything takes, comes from the seed. A loop can be paused, with
or without its clocks, and killed: then none of its callbacks runs again, not even those of `finally` blocks.
"""

import asyncio
import contextvars
import socket
from asyncio.events import _get_running_loop as get_running_loop
from asyncio.events import _set_running_loop as set_running_loop
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from heapq import heappop, heappush
from random import Random
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
Callback = Callable[..., object]
Address = tuple[int, int, int, str, tuple[str, int]]
copy_context = contextvars.copy_context

TURN_S = 0.00002  # what one turn of an event loop takes


class Scheduler:
    """The virtual time, and what happens next."""

    def __init__(self, random: Random) -> None:
        self.now_s = 0.0
        self.random = random
        self.steps = 0
        self.is_stopped = False
        self._events: list[tuple[float, int, Callback, tuple[Any, ...]]] = []
        self._count = 0
        self._until_s = 0.0

    def at(self, when_s: float, happen: Callback, *args: Any) -> None:
        """Let something happen at a virtual time, or now if that is past."""
        self._count += 1
        heappush(self._events, (max(self.now_s, when_s), self._count, happen, args))

    def after(self, delay_s: float, happen: Callback, *args: Any) -> None:
        self._count += 1
        heappush(self._events, (self.now_s + delay_s, self._count, happen, args))

    def run(self, until_s: float) -> None:
        """Let everything happen up to a virtual time."""
        events, self._until_s = self._events, until_s
        while events and events[0][0] <= until_s and not self.is_stopped:
            self.now_s, _, happen, args = heappop(events)
            self.steps += 1
            happen(*args)
        self.now_s = max(self.now_s, until_s)

    def pass_quietly(self, span_s: float) -> bool:
        """Let time pass in the middle of an event, unless another event comes before that."""
        then_s = self.now_s + span_s
        if (self._events and self._events[0][0] <= then_s) or then_s > self._until_s or self.is_stopped:
            return False
        self.now_s = then_s
        self.steps += 1
        return True


class VirtualHandle(msgspec.Struct, eq=False):
    """A callback that an event loop will run, like asyncio.Handle."""

    callback: Callback
    args: tuple[Any, ...]
    context: contextvars.Context
    when_s: float = 0.0  # of a timer, by the clock of its loop
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_s


class VirtualLoop(asyncio.AbstractEventLoop):
    """The event loop of one process. Its clock is the virtual time, less what it spent in pauses without clocks."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self.is_dead = False
        self.errors: list[dict[str, Any]] = []
        self.hosts: dict[str, Callable[[Any], Awaitable[Any]]] = {}  # how a connection to each is made
        self._connecting: dict[socket.socket, str] = {}  # to which host
        self._ready: deque[VirtualHandle] = deque()
        self._late: list[VirtualHandle] = []  # timers that became due in a pause
        self._has_turn = False
        self.is_paused = False
        self._lag_s = 0.0  # how far the monotonic clock is behind the virtual time

    def time(self) -> float:
        return self.scheduler.now_s - self._lag_s

    def pause(self) -> None:
        self.is_paused = True

    def lose(self, lost_s: float) -> None:
        """The monotonic clock stood still for so long, in a pause."""
        self._lag_s += lost_s

    def resume(self) -> None:
        self.is_paused = False
        late, self._late = sorted(self._late, key=lambda timer: timer.when_s), []
        for timer in late:
            self._fire(timer)
        self._need_turn()

    def kill(self) -> None:
        self.is_dead = True
        self._ready.clear()

    def start(self, work: Awaitable[T]) -> "asyncio.Task[T]":
        """Run a coroutine as a task of this process."""
        return self.inside(lambda: self.create_task(work))  # type: ignore[arg-type]

    def inside(self, call: Callable[[], T]) -> T:
        """Call a function as if this loop ran it."""
        before = get_running_loop()
        set_running_loop(self)
        try:
            return call()
        finally:
            set_running_loop(before)

    def call_soon(  # type: ignore[override]
        self, callback: Callback, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = VirtualHandle(callback, args, context or copy_context())
        if not self.is_dead:
            self._ready.append(handle)
            if not self._has_turn:
                self._need_turn()
        return handle  # type: ignore[return-value]

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callback, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callback, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = VirtualHandle(callback, args, context or copy_context(), when)
        if not self.is_dead:
            self.scheduler.at(when + self._lag_s, self._fire, timer)
        return timer  # type: ignore[return-value]

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Generator[Any, None, T], **options: Any) -> "asyncio.Task[T]":  # type: ignore[override]
        return asyncio.Task(coro, loop=self, **options)

    async def getaddrinfo(self, host: str, port: int, **_: object) -> list[Address]:  # type: ignore[override]
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, host, (host, port))]

    async def sock_connect(self, sock: socket.socket, address: tuple[str, int]) -> None:  # type: ignore[override]
        """Only the name of the host is noted: `create_connection` goes there."""
        self._connecting[sock] = address[0]

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], T], *, sock: socket.socket, **_: object
    ) -> tuple[asyncio.Transport, T]:
        sock.close()
        connected: tuple[asyncio.Transport, T] = await self.hosts[self._connecting.pop(sock)](protocol_factory)
        return connected

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        """What a thread would do takes a moment, and happens at its end."""
        done = self.create_future()

        def run() -> None:
            if self.is_dead or done.cancelled():
                return
            try:
                done.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 as a thread pool does
                done.set_exception(error)

        self.scheduler.after(self.scheduler.random.uniform(0.0001, 0.002), run)
        return done

    get_debug = staticmethod(bool)  # it is False, and every future asks

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.is_dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self.errors.append(context)

    def _fire(self, timer: VirtualHandle) -> None:
        if self.is_dead or timer.is_cancelled:
            return
        if self.is_paused:
            self._late.append(timer)
        elif timer.when_s > self.time() + 1e-6:  # the clock stood still meanwhile
            self.scheduler.at(timer.when_s + self._lag_s, self._fire, timer)
        else:
            self._ready.append(timer)
            self._need_turn()

    def _need_turn(self) -> None:
        if not self._has_turn and not self.is_paused and self._ready:
            self._has_turn = True
            self.scheduler.after(TURN_S, self._turn)

    def _turn(self) -> None:
        """Run what is ready, as one iteration of a real loop does, and then the next one if nothing comes between."""
        set_running_loop(self)
        try:
            while not self.is_dead and not self.is_paused:
                self._run_ready()
                if not self._ready or not self.scheduler.pass_quietly(TURN_S):
                    break
        finally:
            set_running_loop(None)
        self._has_turn = False
        self._need_turn()

    def _run_ready(self) -> None:
        ready = self._ready
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.is_cancelled:
                try:
                    handle.context.run(handle.callback, *handle.args)
                except Exception as error:  # noqa: BLE001 as an event loop does
                    self.call_exception_handler({"message": "Exception in callback", "exception": error})
            if not ready:  # it was killed
                break
