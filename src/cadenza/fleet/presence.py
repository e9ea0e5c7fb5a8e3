"""The processes that serve from the store: which of them are dead, and which changes this one follows.

On SQLite each process locks a file, and the operating system drops the lock when the process dies. On Postgres each
process writes a heartbeat twice a second; it is dead if its heartbeat counter stands still for `dead_s`, while the
observer reads it without a gap. No clocks are compared, and an outage of the store restarts every observation. A
process that is to be swept is fenced first: its counter is set below zero, and its next heartbeat fails. If it is
alive, it registers again under a new name. This file knows nothing of money: the ledger sweeps.
"""

import asyncio
import contextlib
import math
import secrets
import time
from collections.abc import Callable

import msgspec
from sqlalchemy import bindparam, delete, insert, literal_column, or_, select, update

from cadenza.store import files, live_processes, migrate, schema
from cadenza.store.statements import Statement
from cadenza.store.store import Row, Store, StoreRefused, StoreUnavailable, Transaction
from cadenza.store.tables import epochs

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while the machine sleeps
ROW = schema.processes.c
NAMED = ROW.name == bindparam("of")
NEWEST = select(schema.epochs.c.number).where(schema.epochs.c.name == literal_column(f"'{epochs.CHANGES}'"))
REGISTER = Statement(insert(schema.processes), "name")
FENCED = -(2**62)  # low enough to stay negative while a process of the release before goes on counting
DESCRIPTION = {name: bindparam(f"its_{name}", None, ROW[name].type) for name in live_processes.DESCRIPTION}
DESCRIBE = Statement(update(schema.processes).where(NAMED).values(DESCRIPTION))
BEAT = Statement(update(schema.processes).where(NAMED, ROW.beats >= 0).values(beats=ROW.beats + 1))
READ_BEATS = Statement(select(ROW.name, ROW.beats, NEWEST.scalar_subquery()))
SET_SEEN = Statement(update(schema.processes).where(NAMED).values(seen=bindparam("number")))
CLAIM = Statement(
    update(schema.processes)
    .where(NAMED, or_(ROW.beats == bindparam("last"), ROW.beats < 0))
    .values(beats=bindparam("fenced"))
)
NAMES = Statement(select(ROW.name))
REMOVE = Statement(delete(schema.processes).where(NAMED))

Clock = Callable[[], float]


class Bounds(msgspec.Struct, frozen=True):
    """How often a process shows that it is alive, and what its silence means, in seconds."""

    beat_every_s: float = 0.5
    fresh_s: float = 2.0  # how long a process may rely on what a beat confirmed
    gap_s: float = 1.0  # the longest time between two reads of one observation
    dead_s: float = 6.0  # more than `fresh_s`: a process that can be swept is not fresh


USUAL_BOUNDS = Bounds()


def elapsed_s() -> float:
    """A clock that nobody can set."""
    return time.clock_gettime(CLOCK)


class Presence:
    """This process among those that serve from the store.

    It follows the epoch of the changes. On Postgres it is fresh if a beat that was sent less than `fresh_s` ago was
    confirmed, with the newest epoch. So `fresh_s` after a change was committed, every fresh process has followed it.
    """

    def __init__(self, store: Store, bounds: Bounds = USUAL_BOUNDS, clock: Clock = elapsed_s) -> None:
        self.name = _new_name()
        self.epoch: int | None = None  # of the changes; None while it is not known
        self.is_swept = False  # another process took this one for dead: it must begin again
        self._store = store
        self._bounds = bounds
        self._clock = clock
        self._fresh_until_s = -math.inf
        self._seen: int | None = None  # the epoch that the other processes know to be followed
        self._followers: list[Callable[[], None]] = []
        self._observation = Observation(bounds)
        self._dead: dict[str, int] = {}  # the beats at which each stands still
        self._woken = asyncio.Event()
        self._wakes: list[Callable[[], None]] = [self._woken.set]
        self._turn = asyncio.Lock()  # beats, looks and registrations: one at a time
        self._lock: int | None = None
        self._started = contextlib.AsyncExitStack()

    @property
    def is_fresh(self) -> bool:
        """Whether this process may rely on what it read under `epoch`. On SQLite always: nothing is kept there."""
        return not self._store.is_shared_by_machines or self._clock() < self._fresh_until_s

    def follow(self, changed: Callable[[], None]) -> None:
        """From now on call `changed` when keys, accounts or classes have changed, or may have."""
        self._followers.append(changed)

    def on_wake(self, wake: Callable[[], None]) -> None:
        """From now on call `wake` when any process has announced something, or may have."""
        self._wakes.append(wake)

    async def start(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._store.watch(self._wake))
            stack.callback(self._unlock)
            await self.rejoin()
            stack.push_async_callback(self._remove)
            stack.push_async_callback(_end, asyncio.create_task(self._beat_forever()))
            self._started = stack.pop_all()

    async def stop(self) -> None:
        """The row stays if reserves or marks refer to it: another process finds this one dead and sweeps them."""
        await self._started.aclose()

    async def rejoin(self) -> None:
        """Register under a new name. For a process that was swept by mistake."""
        async with self._turn:
            self._lose()
            self._unlock()
            self._take_name()
            await self._store.transact(self._register, is_brief=True)
            self.is_swept = False
            await self._catch_up(is_due=True)

    def _register(self, tx: Transaction) -> None:
        """The insert waits for a running migration; the schema is checked after it, in the same transaction."""
        tx.change(REGISTER, {"name": self.name})
        tx.change(DESCRIBE, {"of": self.name, **live_processes.describe_this_process(migrate.REVISIONS[-1])})
        migrate.require_usable(tx)

    async def find_dead(self) -> list[str]:
        """The names of processes that are certainly dead. `claim` one to sweep it."""
        database = self._store.path
        if database is None:
            self._dead = self._observation.dead(self._clock())
        else:
            names = {name for (name,) in await self._store.rows(NAMES, {})} - {self.name}
            for left_behind in set(files.lock_names(database)) - names - {self.name}:
                files.is_unlocked(database, left_behind)
            self._dead = {name: 0 for name in names if files.is_unlocked(database, name)}
        return sorted(self._dead)

    def claim(self, tx: Transaction, name: str) -> bool:
        """Fence a process that `find_dead` named. From then on any process may sweep it, and then remove it.

        False if it is alive after all, or was removed by another process.
        """
        return tx.change(CLAIM, {"of": name, "last": self._dead[name], "fenced": FENCED}) == 1

    def _wake(self) -> None:
        for wake in self._wakes:
            wake()

    async def _beat_forever(self) -> None:
        """Beat in time, and look at once when woken. SQLite needs no beats."""
        loop = asyncio.get_running_loop()
        next_s = loop.time() + self._bounds.beat_every_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_s):
                    await self._woken.wait()
            self._woken.clear()
            is_due = loop.time() >= next_s
            if is_due:
                next_s = loop.time() + self._bounds.beat_every_s
            async with self._turn:
                await self._catch_up(is_due=is_due)

    async def _catch_up(self, *, is_due: bool) -> None:
        try:
            if is_due and self._store.is_shared_by_machines:
                await self._beat()
            else:
                await self._look()
        except StoreUnavailable:
            self._lose()
        except Exception as error:  # noqa: BLE001 without beats this process would be taken for dead
            self._lose()
            asyncio.get_running_loop().call_exception_handler({"message": "a beat failed", "exception": error})

    async def _beat(self) -> None:
        """Show that this process is alive, see who else is, and follow the newest epoch."""
        sent_s = self._clock()
        rows = await self._store.transact(self._write_beat, is_brief=True)
        if not rows:
            self._lose()
            self.is_swept = True
            return
        self._observation.note({name: beats for name, beats, _ in rows}, sent_s, self._clock())
        self._follow(rows[0][2])
        self._fresh_until_s = sent_s + self._bounds.fresh_s
        await self._tell()

    def _write_beat(self, tx: Transaction) -> list[Row]:
        return tx.rows(READ_BEATS, {}) if tx.change(BEAT, {"of": self.name}) else []

    async def _look(self) -> None:
        """Follow the newest epoch."""
        self._follow(await epochs.current(self._store, epochs.CHANGES))
        if self._store.is_shared_by_machines:
            await self._tell()

    def _follow(self, newest: int) -> None:
        if newest != self.epoch:
            self.epoch = newest
            for changed in self._followers:
                changed()

    async def _tell(self) -> None:
        """Tell the commands that wait for it which epoch is followed."""
        if self._seen != self.epoch:
            seen = {"of": self.name, "number": self.epoch}
            await self._store.transact(lambda tx: tx.change(SET_SEEN, seen), is_brief=True, is_single=True)
            self._seen = self.epoch

    def _lose(self) -> None:
        """Rely on nothing until the store answers. It may then be another server, with an earlier state."""
        self._fresh_until_s = -math.inf
        self.epoch = self._seen = None
        self._observation.rejoin()

    async def _remove(self) -> None:
        self._lose()
        with contextlib.suppress(StoreUnavailable, StoreRefused):
            await self._store.transact(lambda tx: remove(tx, self.name), is_brief=True)

    def _take_name(self) -> None:
        self.name = _new_name()
        database = self._store.path
        if database is None:
            return
        try:
            while (lock := files.lock_process(database, self.name)) is None:
                self.name = _new_name()
        except OSError as error:
            problem = f"The file that shows that this process is alive cannot be locked: {error.strerror}."
            raise StoreUnavailable(problem, f"Check the folder of {database}.") from None
        self._lock = lock

    def _unlock(self) -> None:
        if self._lock is not None and self._store.path is not None:
            files.unlock_process(self._store.path, self.name, self._lock)
            self._lock = None


class Observation:
    """Since when the beats of each process stand still, as one observer sees them."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._still: dict[str, tuple[int, float]] = {}  # by name: its beats, and since when they are these
        self._sent_s = self._read_s = -math.inf  # the last read

    def note(self, beats: dict[str, int], sent_s: float, read_s: float) -> None:
        """Take the beats of all processes, read between these two times."""
        before = self._still if read_s - self._read_s <= self._bounds.gap_s else {}
        self._still = {
            name: before[name] if name in before and before[name][0] == count else (count, read_s)
            for name, count in beats.items()
        }
        self._sent_s, self._read_s = sent_s, read_s

    def rejoin(self) -> None:
        self._still = {}

    def dead(self, now_s: float) -> dict[str, int]:
        """The processes whose counter stands still for too long or is fenced, and their counters.

        None if the last read was too long ago.
        """
        if now_s - self._read_s > self._bounds.gap_s:
            return {}
        until_s = self._sent_s - self._bounds.dead_s
        return {name: count for name, (count, since_s) in self._still.items() if since_s <= until_s or count < 0}


def remove(tx: Transaction, name: str) -> None:
    """Delete the row of a process. Reserves and marks must not refer to it any more."""
    tx.change(REMOVE, {"of": name})


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])


def _new_name() -> str:
    return "proc_" + secrets.token_urlsafe(12)
