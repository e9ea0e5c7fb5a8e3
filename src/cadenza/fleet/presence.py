"""The processes that serve from a store: which of them are dead, and which epoch of changes this one has seen.

On SQLite each process locks a file, and the kernel drops the lock when the process dies. On Postgres each process
writes a heartbeat twice a second: it increments a counter in its row. A process is dead if its counter has not changed
for `dead_s` while an observer read it without a gap. No clocks are compared, and an outage of the store restarts every
observation. A dead process is fenced before it is swept: its counter is set below zero, and its next heartbeat fails.
If it was alive after all, it registers again under a new name. This file knows nothing of money: the ledger sweeps.
"""

import asyncio
import contextlib
import math
import os
import secrets
import socket
from collections.abc import Callable
from importlib.metadata import version

import msgspec
from sqlalchemy import bindparam, delete, insert, or_, select, update

from cadenza import clock
from cadenza.fleet.background import running
from cadenza.store import migrate, process_locks, schema
from cadenza.store.statements import Statement
from cadenza.store.store import Store, StoreRefused, StoreUnavailable, Transaction
from cadenza.store.tables import epochs

FENCED = -1
ROW = schema.processes.c
NAMED = ROW.name == bindparam("of")
REGISTER = Statement(insert(schema.processes), "name", "version", "revision", "host", "pid")
HEARTBEAT = Statement(update(schema.processes).where(NAMED, ROW.beats >= 0).values(beats=ROW.beats + 1))
READ_HEARTBEATS = Statement(select(ROW.name, ROW.beats, epochs.number_of(epochs.CHANGES)))
SET_SEEN = Statement(update(schema.processes).where(NAMED).values(seen=bindparam("number")))
FENCE = Statement(
    update(schema.processes)
    .where(NAMED, or_(ROW.beats == bindparam("last"), ROW.beats < 0))
    .values(beats=bindparam("fenced"))
)
NAMES = Statement(select(ROW.name))
REMOVE = Statement(delete(schema.processes).where(NAMED))


class HeartbeatBounds(msgspec.Struct, frozen=True):
    """How often a process writes a heartbeat, and what missing heartbeats mean, in seconds."""

    heartbeat_every_s: float = 0.5
    fresh_s: float = 2.0  # how long a process may rely on what a heartbeat confirmed
    gap_s: float = 1.0  # the longest time between two reads of one observation
    dead_s: float = 6.0  # more than `fresh_s`: a process that can be swept is not fresh


USUAL_BOUNDS = HeartbeatBounds()


def new_name() -> str:
    return "proc_" + secrets.token_urlsafe(12)


class Host(msgspec.Struct, frozen=True):
    """What presence and ledger take from the machine: its clocks, and new names for processes."""

    elapsed_s: Callable[[], float] = clock.elapsed_s
    now_ms: Callable[[], int] = clock.now_ms
    new_name: Callable[[], str] = new_name


THIS_HOST = Host()


class Presence:
    """This process among those that serve from the store.

    On Postgres it is fresh if a heartbeat that was sent less than `fresh_s` ago was confirmed, together with the newest
    epoch. So `fresh_s` after a change was committed, every fresh process has seen it. On SQLite it is always fresh:
    there each request finds out by itself whether a key, an account or a class has changed (fleet/key_cache.py).
    """

    def __init__(self, store: Store, bounds: HeartbeatBounds = USUAL_BOUNDS, host: Host = THIS_HOST) -> None:
        self.host = host
        self.name = host.new_name()
        self.epoch: int | None = None  # the newest epoch of changes that was seen; None while it is not known
        self.is_swept = False  # another process fenced this one: it must rejoin
        self._store = store
        self._bounds = bounds
        self._fresh_until_s = -math.inf
        self._reported: int | None = None  # the epoch in this process's row
        self._on_change: list[Callable[[], None]] = []
        self._observation = Observation(bounds)
        self._dead: dict[str, int] = {}  # the counter of each dead process
        self._woken = asyncio.Event()
        self._on_wake: list[Callable[[], None]] = [self._woken.set]
        self._turn = asyncio.Lock()  # heartbeats, checks of the epoch and registrations: one at a time
        self._lock: int | None = None
        self._started = contextlib.AsyncExitStack()

    @property
    def is_fresh(self) -> bool:
        """Whether this process may rely on what it read under `epoch`."""
        return self._store.process_locks is not None or self.host.elapsed_s() < self._fresh_until_s

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever keys, accounts or classes have changed, or may have."""
        self._on_change.append(changed)

    def on_wake(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever a process has announced something, or may have."""
        self._on_wake.append(wake)

    async def start(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._store.watch(self._wake))
            stack.callback(self._unlock)
            await self.rejoin()
            stack.push_async_callback(self._remove)
            await stack.enter_async_context(running(self._keep_alive()))
            self._started = stack.pop_all()

    async def stop(self) -> None:
        """The row stays if reserves or marks refer to it: another process finds this one dead and sweeps them."""
        await self._started.aclose()

    def note(self, number: int) -> None:
        """Note the number of the newest entry in the lock file, which outlives this process."""
        if self._lock is not None:
            process_locks.note(self._lock, number)

    async def rejoin(self) -> None:
        """Register under a new name: at the start, and after this process was swept by mistake."""
        async with self._turn:
            self._invalidate()
            self._unlock()
            self._take_name()
            await self._store.transact(self._register, is_brief=True)
            self.is_swept = False
            await self._refresh(is_due=True)

    def _register(self, tx: Transaction) -> None:
        """The insert waits for a running migration; the schema is checked after it, in the same transaction."""
        register(tx, self.name)
        migrate.require_usable(tx)

    async def find_dead(self) -> list[str]:
        """The names of processes that are certainly dead. `fence` one before sweeping it."""
        if (locks := self._store.process_locks) is None:
            self._dead = self._observation.dead(self.host.elapsed_s())
        else:
            names = {name for (name,) in await self._store.rows(NAMES, {})} - {self.name}
            for left_behind in set(locks.names()) - names - {self.name}:
                locks.remove_if_free(left_behind)
            self._dead = {name: 0 for name in names if locks.remove_if_free(name)}
        assert self.name not in self._dead
        return sorted(self._dead)

    def fence(self, tx: Transaction, name: str) -> bool:
        """Fence a process that `find_dead` named. From then on any process may sweep it, and then remove it.

        False if it is alive after all, or was removed by another process.
        """
        assert name != self.name
        return tx.change(FENCE, {"of": name, "last": self._dead[name], "fenced": FENCED}) == 1

    def _wake(self) -> None:
        for wake in self._on_wake:
            wake()

    async def _keep_alive(self) -> None:
        """Send heartbeats on schedule, and check the epoch on every notification."""
        loop = asyncio.get_running_loop()
        next_s = loop.time() + self._bounds.heartbeat_every_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_s):
                    await self._woken.wait()
            self._woken.clear()
            is_due = loop.time() >= next_s
            if is_due:
                next_s = loop.time() + self._bounds.heartbeat_every_s
            async with self._turn:
                await self._refresh(is_due=is_due)

    async def _refresh(self, *, is_due: bool) -> None:
        """Send the heartbeat that is due, or check the epoch. A process with a lock file needs no heartbeats."""
        try:
            if self._store.process_locks is not None:
                self._see(await epochs.current(self._store, epochs.CHANGES))
            elif is_due:
                await self._send_heartbeat()
            else:
                self._see(await epochs.current(self._store, epochs.CHANGES))
                await self._report_epoch()
        except StoreUnavailable:
            self._invalidate()
        except Exception as error:  # noqa: BLE001 without heartbeats the others would take this process for dead
            self._invalidate()
            asyncio.get_running_loop().call_exception_handler({"message": "a heartbeat failed", "exception": error})

    async def _send_heartbeat(self) -> None:
        """Increment the counter of this process, and read those of all others and the newest epoch."""
        sent_s = self.host.elapsed_s()
        rows = await self._store.transact(
            lambda tx: tx.rows(READ_HEARTBEATS, {}) if tx.change(HEARTBEAT, {"of": self.name}) else [], is_brief=True
        )
        if not rows:
            self._invalidate()
            self.is_swept = True
            return
        self._observation.note({name: count for name, count, _ in rows}, sent_s, self.host.elapsed_s())
        self._see(rows[0][2])
        self._fresh_until_s = sent_s + self._bounds.fresh_s
        await self._report_epoch()

    def _see(self, newest: int) -> None:
        if newest != self.epoch:
            self.epoch = newest
            for changed in self._on_change:
                changed()

    async def _report_epoch(self) -> None:
        """Write the epoch into the row of this process, for `make_change`, which waits for it."""
        if self._reported != self.epoch:
            seen = {"of": self.name, "number": self.epoch}
            await self._store.transact(lambda tx: tx.change(SET_SEEN, seen), is_brief=True, is_single=True)
            self._reported = self.epoch

    def _invalidate(self) -> None:
        """Rely on nothing until the store answers. It may then be another server, with an older state."""
        self._fresh_until_s = -math.inf
        self.epoch = self._reported = None
        self._observation.restart()

    async def _remove(self) -> None:
        self._invalidate()
        with contextlib.suppress(StoreUnavailable, StoreRefused):
            await self._store.transact(lambda tx: remove(tx, self.name), is_brief=True)

    def _take_name(self) -> None:
        self.name = self.host.new_name()
        if (locks := self._store.process_locks) is None:
            return
        try:
            while (lock := locks.lock(self.name)) is None:
                self.name = self.host.new_name()
        except OSError as error:
            problem = f"The file that shows that this process is alive cannot be locked: {error.strerror}."
            raise StoreUnavailable(problem, f"Check the folder of {self._store.path}.") from None
        self._lock = lock

    def _unlock(self) -> None:
        if (locks := self._store.process_locks) is not None and self._lock is not None:
            locks.unlock(self.name, self._lock)
            self._lock = None


class Observation:
    """Since when the counter of each process has not changed, as one observer sees it."""

    def __init__(self, bounds: HeartbeatBounds) -> None:
        self._bounds = bounds
        self._since: dict[str, tuple[int, float]] = {}  # by name: its counter, and since when it has this value
        self._sent_s = self._read_s = -math.inf  # the last read

    def note(self, counters: dict[str, int], sent_s: float, read_s: float) -> None:
        """Take the counters of all processes, read between these two times."""
        assert self._sent_s <= sent_s <= read_s
        before = self._since if read_s - self._read_s <= self._bounds.gap_s else {}
        self._since = {
            name: before[name] if name in before and before[name][0] == count else (count, read_s)
            for name, count in counters.items()
        }
        self._sent_s, self._read_s = sent_s, read_s

    def restart(self) -> None:
        self._since = {}

    def dead(self, now_s: float) -> dict[str, int]:
        """The processes whose counter has not changed for `dead_s`, or is fenced, with their counters.

        None of them if the last read was too long ago.
        """
        if now_s - self._read_s > self._bounds.gap_s:
            return {}
        until_s = self._sent_s - self._bounds.dead_s
        return {name: count for name, (count, since_s) in self._since.items() if since_s <= until_s or count < 0}


def register(tx: Transaction, name: str) -> None:
    program = {"version": version("cadenza"), "revision": migrate.REVISIONS[-1]}
    tx.change(REGISTER, {"name": name, **program, "host": socket.gethostname(), "pid": os.getpid()})


async def is_registered(store: Store, name: str) -> bool:
    """Whether the process with this name serves from the store."""
    return (name,) in [tuple(row) for row in await store.rows(NAMES, {})]


def remove(tx: Transaction, name: str) -> None:
    """Delete the row of a process. StoreRefused while reserves or marks refer to it."""
    tx.change(REMOVE, {"of": name})
