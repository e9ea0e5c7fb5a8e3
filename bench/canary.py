"""The canary's sequential test by simulation: false alarms, and how many requests a fault takes to be noticed.

`python -m bench.canary` runs 10,000 canaries of each kind, from fixed seeds. Requests arrive from accounts of different
weight and habits; the accounts of the candidate are a random share, as they are in the service. Those of the incumbent
are drawn anew for every 50 canaries only: they are many, so that they matter less.
"""

import argparse
import math
import random
import time
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial

import msgspec
import rich.console
from msgspec.structs import replace

from cadenza.core.classes import SHARES, WHOLE
from cadenza.evaluation.canaries import ACCOUNT_REQUESTS
from cadenza.evaluation.canary import (
    ACCOUNT_BITS,
    DOUBT,
    GROUPS,
    HOUR_MS,
    Bet,
    Block,
    CanaryState,
    StepRules,
    alarm_of,
    bin_of,
    decide,
)

RUNS = 10_000
RUNS_PER_POOL = 50
HOURS_MAX = 72
FAILING_RATE = 0.2
HABITS, HABIT_RESULTS = 2_000, 200  # accounts that differ
LIKE_RESULTS = 20_000  # accounts that are alike
RULES = StepRules(least_ms=0)


class World(msgspec.Struct, frozen=True, kw_only=True):
    """How requests turn out."""

    name: str
    errors: float = 0.01
    candidate_errors: float = 0.01
    slower: float = 1.0
    longer: float = 1.0
    cut: float = 0.03
    candidate_cut: float = 0.03
    turn: int = 100  # requests that are added to the store at once, at most and on average
    accounts: int = 400
    account_hour: float = 5  # requests of an account in an hour
    cap: int = ACCOUNT_REQUESTS  # of these are counted, at most
    spread: float = 0.0  # how much accounts differ in times and lengths: a standard deviation of logs
    uneven: float = 0.0  # how much accounts differ in requests: a standard deviation of logs
    failing: float = 0.0  # of accounts: every fifth request of theirs fails, whoever answers
    repeats: float = 0.0  # how likely an account's request turns out as the one before


class Run(msgspec.Struct, frozen=True):
    """How a canary ended: the measure that raised the alarm, and the candidate's requests until then."""

    alarm: str | None
    requests: int


class Result(msgspec.Struct, frozen=True):
    """How a request turned out: an error, or whether it was cut, and the bins of its first token and its length."""

    is_error: bool
    is_cut: bool = False
    first_token: int = 0
    length: int = 0


class Habit(msgspec.Struct, frozen=True):
    """What is usual for an account: times, lengths and cut answers, relative to others, and how often it fails."""

    pace: float = 1.0
    size: float = 1.0
    fails: float = 0.0
    cuts: float = 1.0


class Account(msgspec.Struct, frozen=True):
    """One account: its number, how many requests it sends in an hour, and how they turn out."""

    number: int
    rate: float
    results: tuple[list[Result], list[Result]]  # of the incumbent and of the candidate


class Turn:
    """What was counted of one side in a turn."""

    def __init__(self) -> None:
        self.block = Block()
        self._seen: list[tuple[int, bool, Result]] = []
        self._without: list[Block] = []

    def count(self, number: int, is_candidate: bool, result: Result) -> None:
        """Count a request of an account."""
        self._seen.append((number, is_candidate, result))
        _count(self.block, number, is_candidate, result)

    @property
    def without(self) -> list[Block]:
        """The same without each group of accounts."""
        if not self._without:
            self._without = [Block() for _ in range(GROUPS)]
            for number, is_candidate, result in self._seen:
                for group, block in enumerate(self._without):
                    if group != number % GROUPS:
                        _count(block, number, is_candidate, result)
        return self._without


class SimulatedCanary:
    """The state of a canary, in which the bets without each group are made only where they can matter.

    They matter for a measure whose bet on all accounts is in doubt. From then on they are made, for all turns that
    were before too. So the state decides as if they had always been made.
    """

    def __init__(self) -> None:
        self.state = CanaryState()
        self._turns: list[tuple[Turn, ...]] = []  # of both sides; none: the next step began
        self._followed: set[str] = set()  # measures

    def add(self, *sides: Turn) -> None:
        state = self.state
        self._turns.append(sides)
        state.add(*(side.block for side in sides))
        doubts = {measure for measure, bet in state.bets.items() if bet.capital >= DOUBT}
        if doubts - self._followed:
            self._follow(doubts)
        elif state.without:
            _add_without(state, sides)

    def begin_step(self) -> None:
        self._turns.append(())
        self.state.begin_step()

    def _follow(self, measures: set[str]) -> None:
        self._followed |= measures
        again = CanaryState(without=[CanaryState(bets={one: Bet() for one in self._followed}) for _ in range(GROUPS)])
        for sides in self._turns:
            if sides:
                _add_without(again, sides)
            else:
                again.begin_step()
        self.state.without = again.without


def simulate(world: World, seed: int, *, stops: bool) -> Run:
    """One canary. With `stops` it ends as it would in the service; otherwise it stays at 5% until an alarm."""
    dice = random.Random(seed)  # noqa: S311 a simulation
    places = [dice.random() * WHOLE for _ in range(world.accounts)]
    canary, share, hours = SimulatedCanary(), SHARES[0], 0
    accounts = [_account(world, dice, number) for number, place in enumerate(places) if place < share]
    state = canary.state
    while hours < HOURS_MAX:
        theirs = _incumbents(world, share, seed // RUNS_PER_POOL, hours)
        ours = _hour(world, dice, accounts, True)
        hours += 1
        for sides in zip(theirs, ours, strict=True):
            canary.add(*sides)
            if alarm := alarm_of(state):
                return Run(alarm, state.bets["errors"].n_a)
            if stops and (decision := decide(state, share, hours * HOUR_MS, RULES)):
                if decision.share == WHOLE:
                    return Run(None, state.bets["errors"].n_a)
                more = [number for number, place in enumerate(places) if share <= place < decision.share]
                accounts += [_account(world, dice, number) for number in more]
                share, hours = decision.share, 0
                canary.begin_step()
                break
    return Run(None, state.bets["errors"].n_a)


@lru_cache(maxsize=80)
def _incumbents(world: World, share: int, pool: int, hour: int) -> list[Turn]:
    """An hour of those accounts that the candidate does not serve, for all canaries of a pool."""
    dice = random.Random(pool)  # noqa: S311 a simulation
    accounts = [_account(world, dice, number) for number in range(world.accounts * (WHOLE - share) // WHOLE)]
    return _hour(world, random.Random(f"{pool} {hour}"), accounts, False)  # noqa: S311 a simulation


def _account(world: World, dice: random.Random, number: int) -> Account:
    rate = world.account_hour * math.exp(dice.gauss(0, world.uneven) - world.uneven**2 / 2)
    return Account(number, rate, dice.choice(_habits(world)))


def _hour(world: World, dice: random.Random, accounts: list[Account], is_candidate: bool) -> list[Turn]:
    """The requests of an hour that are counted, in their order. Of an account, these are its first ones."""
    turns = [Turn() for _ in range(world.accounts * ACCOUNT_REQUESTS // world.turn)]
    for account in accounts:
        moment, last, results = 0.0, None, account.results[is_candidate]
        for _ in range(world.cap):
            moment += dice.expovariate(account.rate)
            if moment >= 1:
                break
            if last is None or dice.random() >= world.repeats:
                last = results[int(dice.random() * len(results))]
            turns[int(moment * len(turns))].count(account.number, is_candidate, last)
    return turns


@lru_cache(maxsize=1)
def _habits(world: World) -> list[tuple[list[Result], list[Result]]]:
    """How requests of different accounts turn out, if the incumbent answers and if the candidate does."""
    habits, spread = list[tuple[list[Result], list[Result]]](), world.spread
    for number in range(HABITS if spread else 1):
        dice = random.Random(number)  # noqa: S311 a simulation
        habit = Habit(
            pace=math.exp(dice.gauss(0, spread / 2)),
            size=math.exp(dice.gauss(0, spread)),
            fails=FAILING_RATE if dice.random() < world.failing else 0.0,
            cuts=math.exp(dice.gauss(0, spread)),
        )
        theirs, ours = (_draw_results(world, random.Random(number), side, habit) for side in (False, True))  # noqa: S311
        habits.append((theirs, ours))
    return habits


def _draw_results(world: World, dice: random.Random, is_candidate: bool, habit: Habit) -> list[Result]:
    return [_draw(world, dice, is_candidate, habit) for _ in range(HABIT_RESULTS if world.spread else LIKE_RESULTS)]


def _draw(world: World, dice: random.Random, is_candidate: bool, habit: Habit) -> Result:
    """A first token after 0.6 s and an answer of 300 tokens, spread by half and by 0.8 of their size."""
    if dice.random() < max(habit.fails, world.candidate_errors if is_candidate else world.errors):
        return Result(True)
    first_ms = 600 * math.exp(dice.gauss(0, 0.5)) * habit.pace * (world.slower if is_candidate else 1)
    tokens = 300 * math.exp(dice.gauss(0, 0.8)) * habit.size * (world.longer if is_candidate else 1)
    cuts = habit.cuts * (world.candidate_cut if is_candidate else world.cut)
    return Result(False, dice.random() < cuts, bin_of(first_ms), bin_of(tokens))


def _count(block: Block, number: int, is_candidate: bool, result: Result) -> None:
    side = block.incumbent
    if is_candidate:
        side = block.candidate
        block.accounts |= 1 << number % ACCOUNT_BITS
    side.requests += 1
    if result.is_error:
        side.errors += 1
        return
    side.answers += 1
    side.cut += result.is_cut
    side.first_token[result.first_token] = side.first_token.get(result.first_token, 0) + 1
    side.length[result.length] = side.length.get(result.length, 0) + 1


def _add_without(state: CanaryState, sides: tuple[Turn, ...]) -> None:
    for number, view in enumerate(state.without):
        view.add(*(side.without[number] for side in sides))


DIFFERENT = World(name="", account_hour=10, spread=0.7, uneven=1.5, failing=0.02, repeats=0.3)
SAME = (
    World(name="no difference"),
    World(name="1.2 times slower, 1.2 times longer", slower=1.2, longer=1.2),
    replace(DIFFERENT, name="1000 accounts differ", accounts=1_000),
    replace(DIFFERENT, name="200 accounts differ", accounts=200),
    replace(DIFFERENT, name="50 accounts differ", accounts=50),
    replace(DIFFERENT, name="200 accounts differ, four processes", accounts=200, cap=4 * ACCOUNT_REQUESTS),
)
WORSE = (
    World(name="fails always", candidate_errors=1.0, turn=20),
    World(name="fails 50% instead of 1%", candidate_errors=0.5, turn=20),
    World(name="fails 10% instead of 1%", candidate_errors=0.1),
    World(name="fails 5% instead of 1%", candidate_errors=0.05, turn=200),
    World(name="first token 4 times slower", slower=4, turn=20),
    World(name="first token 2 times slower", slower=2),
    World(name="answers 4 times longer", longer=4, turn=20),
    World(name="answers 2 times longer", longer=2, turn=200),
    World(name="answers 4 times shorter", longer=0.25, turn=20),
    World(name="cut answers 20% instead of 3%", candidate_cut=0.2),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", default="", help="a part of the names of the kinds to simulate")
    given = parser.parse_args()
    console = rich.console.Console(highlight=False, soft_wrap=True)
    with ProcessPoolExecutor(given.processes) as pool:
        for world in (*SAME, *WORSE):
            if given.only not in world.name:
                continue
            began, stops = time.monotonic(), world in SAME
            runs = list(pool.map(partial(simulate, world, stops=stops), range(given.runs), chunksize=RUNS_PER_POOL))
            alarms = [run.alarm for run in runs if run.alarm]
            by = {measure: alarms.count(measure) for measure in sorted(set(alarms))}
            delays = sorted(run.requests if run.alarm else math.inf for run in runs)
            p50, p95 = (delays[int(len(delays) * share)] for share in (0.5, 0.95))
            found = "" if stops else f", p50 {p50}, p95 {p95} requests of the candidate"
            console.print(f"{world.name}: {len(alarms)} alarms in {len(runs)} canaries {by}{found}", end=" ")
            console.print(f"({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
