"""Runs one random history on the model and on a real database, and compares them after every statement."""

from random import Random

from tests.simulation.histories import NAMES, Chosen, choose, choose_for_sqlite, first_rows
from tests.simulation.sides import Did, ModelSide, Side

STEPS = 40
ENDS, COMMITS, GIVES_UP = 0.2, 0.75, 0.1  # how often a session ends, how often by a commit, and how often one gives up
TABLES = (
    "accounts",
    "keys",
    "entries",
    "processes",
    "reserves",
    "marks",
    "idempotency",
    "usage",
    "usage_days",
    "epochs",
    "caps",
    "cap_holds",
    "vouchers",
    "payments",
    "payment_events",
    "debts",
    "credit_lots",
    "command_references",
    "audit_events",
)


class Difference(AssertionError):
    """The model and the real database did not do the same. The message has the whole history."""


class DeadlockFound(Exception):
    """Both sides found a deadlock."""


class Comparison:
    """Two sides that run the same history."""

    def __init__(self, model: ModelSide, real: Side, sessions: int) -> None:
        self._model = model
        self._real = real
        self._sessions = range(sessions)
        self._failed: set[int] = set()  # sessions that can only be rolled back
        self._history: list[str] = []
        self.statements = self.waits = self.refusals = self.deadlocks = 0

    async def run(self, number: int, chosen: Chosen) -> Did | None:
        """Run a statement on both sides, and return what both did."""
        values = ", ".join(f"{name}={_short(value)}" for name, value in chosen[1].items() if value != [])
        self._history.append(f"{number}: {NAMES.get(chosen[0], 'a statement')} {values}")
        self.statements += 1
        modelled, real = await self._model.run(number, *chosen), await self._real.run(number, *chosen)
        if modelled is not None and modelled.is_deadlock:
            self._check_deadlock(real)
        self._check("the results", modelled, real)
        if modelled is None:
            self.waits += 1
        elif modelled.refused:
            self.refusals += 1
            self._failed.add(number)
        await self._check_finished()
        return modelled

    async def end(self, number: int, *, commits: bool) -> dict[int, Did]:
        """End a session on both sides, and return what went on."""
        commits = commits and number not in self._failed
        self._history.append(f"{number}: {'COMMIT' if commits else 'ROLLBACK'}")
        self._failed.discard(number)
        await self._model.end(number, commits=commits)
        await self._real.end(number, commits=commits)
        return await self._check_finished()

    async def give_up(self, number: int) -> dict[int, Did]:
        self._history.append(f"{number}: gives up")
        self._failed.add(number)
        await self._model.give_up(number)
        await self._real.give_up(number)
        return await self._check_finished()

    async def waiting(self) -> dict[int, set[int]]:
        return await self._model.waiting()

    async def is_race(self) -> bool:
        """Whether two sessions wait for the same one: which of them goes on first may be chance."""
        waiting = await self.waiting()
        return len(waiting) > len({min(others) for others in waiting.values()})

    async def finish(self) -> None:
        """End all sessions, and compare all tables."""
        if await self.is_race():
            await self.give_up(max(await self.waiting()))
        while open_ := [number for number in self._sessions if number not in await self.waiting()]:
            for number in open_:
                await self.end(number, commits=True)
            if len(open_) == len(self._sessions):
                break
        for table in TABLES:
            self._check(f"the table {table}", await self._model.contents(table), await self._real.contents(table))

    async def roll_back_all(self) -> None:
        """End what a deadlock left open: which of the sessions it ended may differ."""
        for side in (self._model, self._real):
            while waiting := await side.waiting():
                await side.give_up(min(waiting))
            for number in self._sessions:
                await side.end(number, commits=False)
            side.finished.clear()

    def must_roll_back(self, number: int) -> bool:
        return number in self._failed

    async def _check_finished(self) -> dict[int, Did]:
        modelled, real = dict(self._model.finished), dict(self._real.finished)
        self._model.finished.clear()
        self._real.finished.clear()
        if any(one.is_deadlock for one in modelled.values()):
            self._check_deadlock(*real.values())
        self._check("what went on", modelled, real)
        self._failed |= {number for number, one in modelled.items() if one.refused}
        await self._check_waits()
        return modelled

    async def _check_waits(self) -> None:
        """A session waits on both sides or on none, and for the same one, directly or by way of others."""
        modelled, real = await self._model.waiting(), await self._real.waiting()
        self._check("who waits", sorted(modelled), sorted(real))
        for number, others in modelled.items():
            if not others <= real[number]:
                self._check(f"for whom {number} waits", others, real[number])

    def _check_deadlock(self, *real: Did | None) -> None:
        """The real one may choose another victim, and even two."""
        victims = [one for one in (*real, *self._real.finished.values()) if one is not None and one.is_deadlock]
        self._check("whether there is a deadlock", True, bool(victims))
        self.deadlocks += 1
        raise DeadlockFound

    def _check(self, what: str, modelled: object, real: object) -> None:
        if modelled != real:
            history = "\n".join(self._history)
            raise Difference(f"{what} differ after\n{history}\n\nmodel: {modelled}\nreal:  {real}")


async def replay(seed: int, model: ModelSide, real: Side, sessions: int) -> Comparison:
    """Run the history of this seed. It ends early if it finds a deadlock."""
    random, comparison = Random(seed), Comparison(model, real, sessions)
    for chosen in first_rows():
        await comparison.run(0, chosen)
    await comparison.end(0, commits=True)
    is_sqlite = model.database.kind == "sqlite"
    try:
        for _ in range(STEPS):
            await _step(random, comparison, range(sessions), is_sqlite=is_sqlite)
        await comparison.finish()
    except DeadlockFound:
        await comparison.roll_back_all()
    return comparison


async def _step(random: Random, comparison: Comparison, sessions: range, *, is_sqlite: bool) -> None:
    """Let one session run a statement, end or give up. Session 0 of SQLite writes, and the others read."""
    waiting = await comparison.waiting()
    number = random.choice([one for one in sessions if one not in waiting])
    if await comparison.is_race() or (waiting and random.random() < GIVES_UP):
        await comparison.give_up(random.choice(sorted(waiting)))
    elif comparison.must_roll_back(number) or random.random() < ENDS:
        await comparison.end(number, commits=random.random() < COMMITS)
    elif is_sqlite:
        await comparison.run(number, choose_for_sqlite(random, only_reads=number > 0))
        if number > 0:
            await comparison.end(number, commits=True)
    else:
        await comparison.run(number, choose(random))


def _short(value: object) -> str:
    return f"b*{value[0]}" if isinstance(value, bytes) else repr(value)
