"""The canary's sequential test by simulation: false alarms, and how many requests a fault takes to be noticed.

`python -m bench.canary` runs 10,000 canaries of each kind, from fixed seeds. Requests arrive from accounts of different
weight and habits; the accounts of the candidate are a random share, as they are in the service.
"""

import argparse
import math
import random
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import msgspec

from cadenza.evaluation.canary import Block, CanaryState, Side, StepRules, alarm_of, bin_of, decide
from cadenza.evaluation.canary_watch import ACCOUNT_REQUESTS

RUNS = 10_000
REQUESTS_PER_TURN = 20  # of all accounts: what a process adds to the store at once
CANDIDATE_REQUESTS_MAX = 2_000


class World(msgspec.Struct, frozen=True, kw_only=True):
    """How requests turn out. `spread` is how much accounts differ in times and lengths, as a standard deviation of logs."""

    name: str
    errors: float = 0.01
    candidate_errors: float = 0.01
    slower: float = 1.0
    longer: float = 1.0
    cut: float = 0.03
    candidate_cut: float = 0.03
    accounts: int = 2_000
    spread: float = 0.0
    uneven: float = 0.0  # how much accounts differ in requests: a standard deviation of logs
    failing: float = 0.0  # of accounts: every fifth request of theirs fails, whoever answers
    repeats: float = 0.0  # how likely an account's request turns out as the one before
    cap: int = ACCOUNT_REQUESTS


class Run(msgspec.Struct, frozen=True):
    """How a canary ended: the measure that raised the alarm, and the candidate's requests until then."""

    alarm: str | None
    requests: int
    served: int  # with those above the cap of an account


class Account(msgspec.Struct):
    """One account: its side, habits, and how many of its requests were counted."""

    is_candidate: bool
    pace: float
    size: float
    fails: float
    cuts: float
    counted: int = 0
    last: Side | None = None


def simulate(world: World, seed: int, *, stops: bool) -> Run:
    """One canary. With `stops` it ends as it would in the service; otherwise it stays at 5% until an alarm."""
    dice = random.Random(seed)  # noqa: S311 a simulation
    places = [dice.random() for _ in range(world.accounts)]
    accounts = [_account(world, dice, place < 0.05) for place in places]
    weights = [math.exp(dice.gauss(0, world.uneven)) for _ in accounts]
    state, share, served = CanaryState(), 5, 0
    rules = StepRules(least_ms=0)
    while served < CANDIDATE_REQUESTS_MAX:
        block = Block()
        for number in dice.choices(range(world.accounts), weights, k=REQUESTS_PER_TURN):
            account = accounts[number]
            served += account.is_candidate
            if account.counted < world.cap:
                account.counted += 1
                if account.last is None or dice.random() >= world.repeats:
                    account.last = _observe(world, dice, account)
                (block.candidate if account.is_candidate else block.incumbent).add(account.last)
                block.accounts |= account.is_candidate << number % 64
        if not block.is_empty:
            state.add(block)
        if alarm := alarm_of(state):
            return Run(alarm, state.bets["errors"].n_a, served)
        if stops and (decision := decide(state, share, 0, rules)):
            if decision.share == 100:
                break
            share = decision.share
            state.begin_step()
            for account, place in zip(accounts, places, strict=True):
                account.is_candidate, account.counted, account.last = place < share / 100, 0, None
    return Run(None, state.bets["errors"].n_a, served)


def _account(world: World, dice: random.Random, is_candidate: bool) -> Account:  # noqa: FBT001
    fails = 0.2 if dice.random() < world.failing else 0.0
    cuts = min(1.0, world.cut * math.exp(dice.gauss(0, world.spread)))
    return Account(is_candidate, dice.gauss(0, world.spread / 2), dice.gauss(0, world.spread), fails, cuts)


def _observe(world: World, dice: random.Random, account: Account) -> Side:
    """A first token after 0.6 s and an answer of 300 tokens, spread by half and by once their size."""
    ours = account.is_candidate
    side = Side(requests=1)
    if dice.random() < max(account.fails, world.candidate_errors if ours else world.errors):
        side.errors = 1
        return side
    first_ms = 600 * math.exp(account.pace + dice.gauss(0, 0.5)) * (world.slower if ours else 1)
    tokens = 300 * math.exp(account.size + dice.gauss(0, 0.8)) * (world.longer if ours else 1)
    side.answers = 1
    side.cut = dice.random() < (world.candidate_cut if ours and world.candidate_cut != world.cut else account.cuts)
    side.first_token, side.length = {bin_of(first_ms): 1}, {bin_of(tokens): 1}
    return side


HABITS = {"spread": 0.7, "uneven": 1.5, "failing": 0.02}
SAME = (
    World(name="no difference"),
    World(name="1.2 times slower, 1.2 times longer", slower=1.2, longer=1.2),
    World(name="results repeat", repeats=0.3),
    World(name="accounts differ", **HABITS),
    World(name="accounts differ, results repeat", repeats=0.3, **HABITS),
    World(name="accounts differ, results repeat, 200 accounts", accounts=200, repeats=0.3, **HABITS),
    World(name="the same without a cap", accounts=200, repeats=0.3, cap=10**9, **HABITS),
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
    with ProcessPoolExecutor(given.processes) as pool:
        for world in SAME:
            if given.only in world.name:
                runs = list(pool.map(partial(simulate, world, stops=True), range(given.runs), chunksize=50))
                alarms = [run.alarm for run in runs if run.alarm]
                by = {measure: alarms.count(measure) for measure in sorted(set(alarms))}
                print(f"{world.name}: {len(alarms)} false alarms in {len(runs)} canaries {by or ''}", flush=True)
        for world in WORSE:
            if given.only in world.name:
                runs = list(pool.map(partial(simulate, world, stops=False), range(given.runs), chunksize=50))
                delays = sorted(run.requests if run.alarm else CANDIDATE_REQUESTS_MAX for run in runs)
                missed = sum(run.alarm is None for run in runs)
                p50, p95 = (delays[int(len(delays) * share)] for share in (0.5, 0.95))
                print(f"{world.name}: p50 {p50}, p95 {p95} requests of the candidate, {missed} missed", flush=True)


if __name__ == "__main__":
    main()
