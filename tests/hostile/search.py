"""Searches for inputs that cost a function more than six times as much at four times the size.

Cost is counted in two ways: the lines of Python that run, which is exact, and the CPU time of the thread, the least of
several runs, which sees what C does (regular expressions, `in`, concatenation, libraries). What is dear for its size is
kept, changed a little and tried again. Run `python -m tests.hostile.search --seconds 600`.
"""

import argparse
import gc
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, NamedTuple

from tests.hostile.grammar import Grammar, Recipe

TIMES, GROWTH_MAX = 4, 6.0
SIZE_BYTES_MIN = 1024
LINES_FREE, LINES_PER_BYTE = 2_000, 12  # linear work that is cheap at both sizes says nothing of the growth
CPU_NS_FREE, CPU_NS_PER_BYTE = 4_000_000, 500
LINES_COUNTED_MAX = 3_000_000
TRACED_CPU_NS_MAX = 20_000_000  # to count the lines of more would take long, and its time is clear
LOOP_LINES_MAX, LOOP_CPU_NS_MAX = 250_000, 50_000_000  # of what runs on the event loop, on a busy machine
TRIES = 7  # before CPU time is believed
HUNG_S = 10.0  # of one run: then the process is killed, and the input is found
KEPT, FAULTS_MAX = 8, 3
SHOWN_BYTES = 60
NEW = 0.3  # of the inputs
MEMORY_BYTES = 2 * 2**30


class Target(NamedTuple):
    """A function that sees a client's bytes.

    `prepare` makes its argument of an input. It returns None, or the CPU time in ns that it took in another process.
    `is_on_loop`: other requests wait for it. `clock` has the CPU time that was used. `found` broke the
    rule once, and is tried first.
    """

    run: Callable[[Any], object]
    grammar: Grammar
    bytes_max: int
    prepare: Callable[[bytes], Any] = bytes
    is_on_loop: bool = False
    clock: Callable[[], float] = time.process_time
    found: tuple[Recipe, ...] = ()


class Cost(NamedTuple):
    """Of one input. The lines are 0 if they were not counted."""

    lines: int
    cpu_ns: int


class Fault(NamedTuple):
    """An input that breaks the rule."""

    target: str
    rule: str
    recipe: Recipe
    tried: int

    def __str__(self) -> str:
        grown = [(growth.place, growth.piece[:SHOWN_BYTES], growth.share) for growth in self.recipe.growths]
        shown = f"{self.recipe.sample[:SHOWN_BYTES]!r} with {grown}"
        replay = f"--replay '{self.target}' {self.recipe.pack()}"
        return f"{self.target}: {self.rule}, input {self.tried:,}: {shown}\n  {replay}"


@dataclass
class Searched:
    """What was tried of a target: how many inputs, the worst growth, and the faults."""

    tried: int = 0
    growth: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    pools: dict[int, list[tuple[float, Recipe]]] = field(default_factory=dict)


class TooManyLines(BaseException):
    """Enough was counted."""


def count_lines(run: Callable[[Any], object], given: Any) -> int:
    """The lines of Python that run, each as often as it does."""
    count = 0

    def trace(_frame: FrameType, _event: str, _given: object) -> Callable[..., Any]:
        nonlocal count
        count += 1
        if count > LINES_COUNTED_MAX:
            raise TooManyLines
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    with suppress(Exception, TooManyLines):
        run(given)
    sys.settrace(before)
    return count


def cpu_ns(run: Callable[[Any], object], given: Any) -> int:
    """The CPU time of this thread, and what the function says of another process. What it refuses is no fault here."""
    elsewhere: object = None
    signal.setitimer(signal.ITIMER_PROF, HUNG_S)  # a regular expression can be ended by no exception
    before = time.thread_time_ns()
    with suppress(Exception):
        elsewhere = run(given)
    spent = time.thread_time_ns() - before
    signal.setitimer(signal.ITIMER_PROF, 0)
    return spent + (elsewhere if isinstance(elsewhere, int) else 0)


def measure(target: Target, data: bytes, *, tries: int = 1) -> Cost:
    spent_ns = min(cpu_ns(target.run, target.prepare(data)) for _ in range(tries))
    is_counted = spent_ns <= TRACED_CPU_NS_MAX or target.is_on_loop
    return Cost(count_lines(target.run, target.prepare(data)) if is_counted else 0, spent_ns)


def growth_of(target: Target, recipe: Recipe, size_bytes: int, tries: int = 1) -> tuple[float, str]:
    """By how much more than the size the cost grows, up to this size, and in words what it breaks, if anything."""
    small_bytes = size_bytes // TIMES
    small = measure(target, recipe.at(small_bytes), tries=tries)
    large = measure(target, recipe.at(size_bytes), tries=tries)
    by_lines = large.lines / max(small.lines, LINES_FREE + LINES_PER_BYTE * small_bytes) if small.lines else 0.0
    by_time = large.cpu_ns / max(small.cpu_ns, CPU_NS_FREE + CPU_NS_PER_BYTE * small_bytes)
    ms, rule = f"{large.cpu_ns / 1e6:.0f} ms", ""
    if by_lines > GROWTH_MAX:
        rule = f"{by_lines:.1f} times the lines at {size_bytes:,} bytes: {small.lines:,} to {large.lines:,}, {ms}"
    elif by_time > GROWTH_MAX:
        rule = f"{by_time:.1f} times the time at {size_bytes:,} bytes: {small.cpu_ns / 1e6:.1f} ms to {ms}"
    elif target.is_on_loop and large.lines > LOOP_LINES_MAX:
        rule = f"{large.lines:,} lines on the event loop at {size_bytes:,} bytes, {ms}"
    elif target.is_on_loop and large.cpu_ns > LOOP_CPU_NS_MAX:
        rule = f"{ms} on the event loop at {size_bytes:,} bytes"
    return max(by_lines, by_time), rule


def sizes_of(target: Target) -> list[int]:
    """The sizes that are compared with a quarter of them, the largest first."""
    sizes = [target.bytes_max]
    while sizes[-1] // TIMES >= SIZE_BYTES_MIN:
        sizes.append(sizes[-1] // TIMES)
    return sizes


def search(
    name: str,
    target: Target,
    chance: random.Random,
    *,
    cpu_s: float,
    faults_max: int = FAULTS_MAX,
    note: Callable[[Recipe], None] = lambda _: None,
) -> Searched:
    """Try inputs for so much CPU time, or until some break the rule. `note` is told of each before it is tried."""
    searched, sizes = Searched(), sizes_of(target)
    until_s = target.clock() + cpu_s
    again = [(size_bytes, recipe) for recipe in target.found for size_bytes in sizes]
    while (again or target.clock() < until_s) and len(searched.faults) < faults_max:
        size_bytes, recipe = again.pop() if again else (chance.choice(sizes), None)
        pool = searched.pools.setdefault(size_bytes, [])
        if recipe is None:
            is_new = not pool or chance.random() < NEW
            recipe = target.grammar.begin(chance) if is_new else target.grammar.change(chance, chance.choice(pool)[1])
        note(recipe)
        searched.tried += 1
        growth, rule = growth_of(target, recipe, size_bytes)
        if rule:  # what is true is true again, and a busy machine makes no run shorter
            growth, rule = growth_of(target, recipe, size_bytes, TRIES)
        if rule:
            searched.faults.append(Fault(name, rule, recipe, searched.tried))
            continue
        searched.growth = max(searched.growth, growth)
        pool.append((growth, recipe))
        pool.sort(key=lambda one: one[0], reverse=True)
        del pool[KEPT:]
    return searched


def search_apart(name: str, target: Target, seed: str, cpu_s: float) -> Searched:
    """Search in a process of its own. One that hangs is killed, and what it tried last is the fault."""
    receiver, sender = get_context("fork").Pipe(duplex=False)
    child = get_context("fork").Process(target=_search_in_child, args=(name, target, seed, cpu_s, sender))
    if target.clock is time.process_time:  # what is loaded with the first input is no cost of one
        with suppress(Exception):
            target.run(target.prepare(target.grammar.samples[0]))
    gc.freeze()
    child.start()
    sender.close()
    tried, found = 0, None
    recipe = Recipe(b"")
    with suppress(EOFError):
        while not isinstance(found := receiver.recv(), Searched):
            tried, recipe = tried + 1, found
    child.join()
    if isinstance(found, Searched):
        return found
    rule = f"ended by signal {signal.Signals(-(child.exitcode or 0)).name}" if (child.exitcode or 0) < 0 else "failed"
    return Searched(tried, float("inf"), [Fault(name, rule, recipe, tried)])


def _search_in_child(name: str, target: Target, seed: str, cpu_s: float, sender: Connection) -> None:
    gc.disable()  # at times of its own it would look like a cost of the input
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries complain of what they read
    sender.send(search(name, target, random.Random(f"{name} {seed}"), cpu_s=cpu_s, note=sender.send))


def search_all(targets: dict[str, Target], seeds: Iterable[str], cpu_s: float) -> Iterator[tuple[str, Searched]]:
    """Each target for its share of the CPU time, which each seed has in equal parts."""
    seeds = list(seeds)
    for seed in seeds:
        for name, target in targets.items():
            yield name, search_apart(name, target, seed, cpu_s / len(targets) / len(seeds))


def replay(name: str, target: Target, text: str) -> None:
    recipe = Recipe.unpack(text)
    for size_bytes in reversed(sizes_of(target)):
        growth, rule = growth_of(target, recipe, size_bytes, TRIES)
        say(f"{name} {size_bytes:>9,} bytes: {growth:5.1f} {rule}")


def say(*lines: object) -> None:
    print(*lines, sep="\n", flush=True)  # noqa: T201


def main() -> int:
    from tests.hostile.search_targets import TARGETS  # noqa: PLC0415 it imports this module

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of CPU time, for all targets together")
    parser.add_argument("--seed", action="append", help="may be repeated; a fresh one if none is given")
    parser.add_argument("--only", action="append", choices=TARGETS, metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "RECIPE"), help="measure an input that was found")
    args = parser.parse_args()
    if args.replay:
        replay(args.replay[0], TARGETS[args.replay[0]], args.replay[1])
        return 0
    targets = {name: TARGETS[name] for name in args.only or TARGETS}
    seeds = [str(random.randrange(10**9)) if one == "fresh" else one for one in args.seed or ["fresh"]]
    say(f"seeds {', '.join(seeds)}")
    tried, faults = 0, 0
    for name, searched in search_all(targets, seeds, args.seconds):
        tried += searched.tried
        faults += len(searched.faults)
        say(f"{name}: {searched.tried:,} inputs, growth at most {searched.growth:.1f}", *searched.faults)
    say(f"{tried:,} inputs, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
