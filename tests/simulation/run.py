"""Runs seeds, and looks for the shortest history that breaks the same rule."""

import gc
import hashlib
import secrets
import sys
import time
from collections.abc import Callable
from functools import cache
from random import Random
from unittest.mock import patch

import msgspec
from msgspec.structs import replace

from cadenza.ledger import sweeps
from tests.simulation.checks import BrokenRule
from tests.simulation.plan import RunPlan
from tests.simulation.world import World

SHRINK_RUNS = 120
SWEPT_AT_ONCE = 2  # so that sweeps have several batches


class SimulatedRun(msgspec.Struct, frozen=True):
    """What one run did and found. `digest` is the same whenever the same plan is run."""

    plan: RunPlan
    requests: int
    whole: int
    steps: int
    cpu_s: float
    broken: tuple[BrokenRule, ...]
    digest: str
    trace: tuple[str, ...] = ()


def run_plan(plan: RunPlan, *, is_traced: bool = False) -> SimulatedRun:
    """Run a plan. What its processes leave behind in memory is thrown away without running again."""
    began_s = time.process_time()
    gc.disable()
    _freeze_modules()
    world = World(plan, is_traced=is_traced)
    try:
        names = Random(f"names {plan.seed}").randbytes  # of payments
        with patch.object(secrets, "token_bytes", names), patch.object(sweeps, "BATCH_MAX", SWEPT_AT_ONCE):
            world.run()
        done = SimulatedRun(
            plan=plan,
            requests=len(world.chats),
            whole=sum(chat.is_whole for chat in world.chats),
            steps=world.scheduler.steps,
            cpu_s=time.process_time() - began_s,
            broken=tuple(world.checks.broken),
            digest=_digest(world),
            trace=tuple(world.trace or ()),
        )
    finally:
        world.end()
        before, sys.unraisablehook = sys.unraisablehook, lambda _: None
        del world
        gc.collect()
        sys.unraisablehook = before
        gc.enable()
    return done


@cache
def _freeze_modules() -> None:
    """They need not be looked through after every run."""
    gc.freeze()


def shrink(plan: RunPlan, rule: str, say: Callable[[str], None]) -> RunPlan:
    """Leave out faults, commands and requests, as long as the same rule is broken."""
    runs = 0

    def still_breaks(smaller: RunPlan) -> bool:
        nonlocal runs
        runs += 1
        return any(one.rule == rule for one in run_plan(smaller).broken)

    for name in ("faults", "commands", "requests"):
        parts = getattr(plan, name)
        size = max(1, len(parts) // 2)
        while parts and runs < SHRINK_RUNS:
            for begin in range(0, len(parts), size):
                fewer = parts[:begin] + parts[begin + size :]
                if still_breaks(replace(plan, **{name: fewer})):
                    plan, parts = replace(plan, **{name: fewer}), fewer
                    break
            else:
                if size == 1:
                    break
                size = max(1, size // 2)
        say(f"{name}: {len(parts)} left")
    return plan


def _digest(world: World) -> str:
    """Of what happened, to the step: the number of steps, the requests and the tables."""
    digest = hashlib.sha256(f"{world.scheduler.steps} {world.scheduler.now_s}".encode())
    for chat in world.chats:
        digest.update(f"{chat.completion_id} {chat.process.name} {chat.status} {chat.ended_s}".encode())
    for table in ("accounts", "entries", "usage", "idempotency"):
        digest.update(repr([*map(tuple, world.database.rows(table))]).encode())
    return digest.hexdigest()[:16]
