"""The canary's sequential test by simulation: false alarms, and how many requests a fault takes to be noticed.

`python -m bench.canary` runs 10,000 canaries of each kind, from fixed seeds. Requests arrive from accounts of different
weight and habits; the accounts of the candidate are a random share, as they are in the service.
"""

import argparse
import math
import random
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import accumulate

import msgspec
import rich.console
from msgspec.structs import replace

from cadenza.core.classes import SHARES
from cadenza.evaluation.canary import (
    ACCOUNT_BITS,
    GROUPS,
    Block,
    SideCounts,
    StepRules,
    alarm_of,
    bin_of,
    decide,
    decode,
    new_canary,
)
from cadenza.evaluation.canary_watch import ACCOUNT_REQUESTS

RUNS = 10_000
REQUESTS_PER_TURN = 20  # of all accounts: what a process adds to the store at once
REQUESTS_PER_LONG_TURN = 60
TURNS_MAX = 2_000
POOL = 20_000
FIRST_SHARE = SHARES[0]
FAILING_RATE = 0.2
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
    accounts: int = 2_000
    spread: float = 0.0  # how much accounts differ in times and lengths: a standard deviation of logs
    uneven: float = 0.0  # how much accounts differ in requests: a standard deviation of logs
    failing: float = 0.0  # of accounts: every fifth request of theirs fails, whoever answers
    repeats: float = 0.0  # how likely an account's request turns out as the one before
    cap: int = ACCOUNT_REQUESTS


class Run(msgspec.Struct, frozen=True):
    """How a canary ended: the measure that raised the alarm, and the candidate's requests until then."""

    alarm: str | None
    requests: int


class Account(msgspec.Struct):
    """One account: its side, its habits, how many of its requests were counted, and how the last one turned out."""

    is_candidate: bool
    pace: float
    size: float
    fails: float
    cuts: float
    counted: int = 0
    last: "Result | None" = None


class Result(msgspec.Struct, frozen=True):
    """How a request turned out: an error, or whether it was cut, and the bins of its first token and its length."""

    is_error: bool
    is_cut: bool = False
    first_token: int = 0
    length: int = 0


def simulate(world: World, seed: int, *, stops: bool) -> Run:
    """One canary. With `stops` it ends as it would in the service; otherwise it stays at 5% until an alarm."""
    dice = random.Random(seed)  # noqa: S311 a simulation
    places = [dice.random() for _ in range(world.accounts)]
    accounts = [_account(world, dice, place < FIRST_SHARE / 100) for place in places]
    weights = list(accumulate(math.exp(dice.gauss(0, world.uneven)) for _ in accounts))
    state, share, turn = decode(new_canary()), FIRST_SHARE, REQUESTS_PER_LONG_TURN if stops else REQUESTS_PER_TURN
    for _ in range(TURNS_MAX):
        blocks = [Block() for _ in range(GROUPS)]
        for number in dice.choices(range(world.accounts), cum_weights=weights, k=turn):
            account = accounts[number]
            if account.counted < world.cap:
                block = blocks[number % GROUPS]
                account.counted += 1
                if account.last is None or not world.repeats or dice.random() >= world.repeats:
                    account.last = _result(world, dice, account)
                _count(block.candidate if account.is_candidate else block.incumbent, account.last)
                block.accounts |= account.is_candidate << number % ACCOUNT_BITS
        state.add_groups(blocks)
        if alarm := alarm_of(state):
            return Run(alarm, state.bets["errors"].n_a)
        if stops and (decision := decide(state, share, 0, RULES)):
            if decision.share == SHARES[-1]:
                break
            share = decision.share
            state.begin_step()
            for account, place in zip(accounts, places, strict=True):
                account.is_candidate, account.counted, account.last = place < share / 100, 0, None
    return Run(None, state.bets["errors"].n_a)


def _account(world: World, dice: random.Random, is_candidate: bool) -> Account:
    fails = FAILING_RATE if dice.random() < world.failing else 0.0
    cuts = min(1.0, world.cut * math.exp(dice.gauss(0, world.spread)))
    return Account(is_candidate, dice.gauss(0, world.spread / 2), dice.gauss(0, world.spread), fails, cuts)


def _result(world: World, dice: random.Random, account: Account) -> Result:
    """A first token after 0.6 s and an answer of 300 tokens, spread by half and by 0.8 of their size."""
    ours = account.is_candidate
    if not (world.spread or world.failing):
        return dice.choice(_pool(world, ours))
    return _draw(world, dice, account)


@cache
def _pool(world: World, is_candidate: bool) -> list[Result]:
    """Results of accounts without habits; both sides draw from the same ones if there is no difference."""
    dice, typical = random.Random(1), Account(is_candidate, 0, 0, 0, world.cut)  # noqa: S311 a simulation
    return [_draw(world, dice, typical) for _ in range(POOL)]


def _draw(world: World, dice: random.Random, account: Account) -> Result:
    ours = account.is_candidate
    if dice.random() < max(account.fails, world.candidate_errors if ours else world.errors):
        return Result(True)
    cuts = world.candidate_cut if ours and world.candidate_cut != world.cut else account.cuts
    first_ms = 600 * math.exp(account.pace + dice.gauss(0, 0.5)) * (world.slower if ours else 1)
    tokens = 300 * math.exp(account.size + dice.gauss(0, 0.8)) * (world.longer if ours else 1)
    return Result(False, dice.random() < cuts, bin_of(first_ms), bin_of(tokens))


def _count(side: SideCounts, result: Result) -> None:
    side.requests += 1
    if result.is_error:
        side.errors += 1
        return
    side.answers += 1
    side.cut += result.is_cut
    side.first_token[result.first_token] = side.first_token.get(result.first_token, 0) + 1
    side.length[result.length] = side.length.get(result.length, 0) + 1


DIFFERING = World(name="accounts differ", spread=0.7, uneven=1.5, failing=0.02)
SAME = (
    World(name="no difference"),
    World(name="1.2 times slower, 1.2 times longer", slower=1.2, longer=1.2),
    World(name="results repeat", repeats=0.3),
    DIFFERING,
    replace(DIFFERING, name="accounts differ, results repeat", repeats=0.3),
    replace(DIFFERING, name="accounts differ, results repeat, 200 accounts", repeats=0.3, accounts=200),
    replace(DIFFERING, name="the same without a cap", repeats=0.3, accounts=200, cap=10**9),
)
WORSE = (
    World(name="errors 1% -> 5%", candidate_errors=0.05),
    World(name="errors 1% -> 10%", candidate_errors=0.1),
    World(name="errors 1% -> 50%", candidate_errors=0.5),
    World(name="errors 1% -> 100%", candidate_errors=1.0),
    World(name="first token 2 times slower", slower=2),
    World(name="first token 4 times slower", slower=4),
    World(name="answers 2 times longer", longer=2),
    World(name="answers 4 times longer", longer=4),
    World(name="answers 4 times shorter", longer=0.25),
    World(name="cut answers 3% -> 20%", candidate_cut=0.2),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    console = rich.console.Console(highlight=False, soft_wrap=True)
    with ProcessPoolExecutor(given.processes) as pool:
        for world in SAME:
            if given.only in world.name:
                runs = list(pool.map(partial(simulate, world, stops=True), range(given.runs), chunksize=50))
                alarms = [run.alarm for run in runs if run.alarm]
                by = {measure: alarms.count(measure) for measure in sorted(set(alarms))}
                console.print(f"{world.name}: {len(alarms)} false alarms in {len(runs)} canaries {by or ''}")
        for world in WORSE:
            if given.only in world.name:
                runs = list(pool.map(partial(simulate, world, stops=False), range(given.runs), chunksize=50))
                delays = sorted(run.requests if run.alarm else math.inf for run in runs)
                missed = sum(run.alarm is None for run in runs)
                p50, p95 = (delays[int(len(delays) * share)] for share in (0.5, 0.95))
                console.print(f"{world.name}: p50 {p50}, p95 {p95} requests of the candidate, {missed} missed")


if __name__ == "__main__":
    main()
