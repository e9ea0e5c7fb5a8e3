"""`python -m tests.simulation`: run seeds until stopped, or replay one. See docs/money.md."""

import argparse
import gc
import itertools
import os
import sys
import time
import warnings

import msgspec

from tests.simulation.plan import make_plan
from tests.simulation.run import SimulatedRun, run_plan, shrink
from tests.simulation.themes import THEMES, Theme

REQUESTS = 2_000
SAY_EVERY_S = 10.0


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Return 1 if an invariant was broken."""
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of a set of names is a part of what a seed decides
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    warnings.simplefilter("ignore")  # coroutines of processes that were killed
    gc.freeze()  # what is imported stays
    arguments = _parse()
    if arguments.seed is not None:
        theme = theme_of(arguments.seed, arguments.theme)
        return _replay(arguments.seed, arguments.requests, theme, is_quiet=arguments.quiet)
    broken = _run_seeds(arguments)
    if broken is None:
        return 0
    if not arguments.json and not arguments.quiet:
        _replay(broken, arguments.requests, theme_of(broken, arguments.theme), is_quiet=False)
    return 1


def _run_seeds(arguments: argparse.Namespace) -> int | None:
    """Run one seed after the other. Return the first that broke a rule."""
    seed = first = arguments.first if arguments.first is not None else int(time.time()) * 1000 % 10**9
    until_s = time.monotonic() + arguments.seconds if arguments.seconds else float("inf")
    runs, requests, broken = 0, 0, list[int]()
    began_s, said_s = time.process_time(), time.monotonic()

    def say_so_far() -> None:
        if not arguments.json:
            a_second = requests / (time.process_time() - began_s)
            counts = f"{runs} seeds, {requests} requests, {a_second:.0f} a second of CPU, {len(broken)} broke a rule"
            say(f"seeds {first} to {seed}: {counts}")

    try:
        for seed in itertools.count(first) if arguments.seeds is None else range(first, first + arguments.seeds):
            done = run_plan(make_plan(seed, requests=arguments.requests, theme=theme_of(seed, arguments.theme)))
            runs, requests = runs + 1, requests + done.requests
            if done.broken:
                broken.append(seed)
                _report(done, as_json=arguments.json, requests=requests)
            if time.monotonic() >= until_s or (broken and arguments.stop_at_first):
                break
            if time.monotonic() - said_s > SAY_EVERY_S:
                said_s = time.monotonic()
                say_so_far()
    except KeyboardInterrupt:
        arguments.quiet = True
    say_so_far()
    return broken[0] if broken else None


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make simulate", description="Simulate ledger and fleet from seeds.")
    parser.add_argument("--seed", type=int, help="replay one seed, and look for the shortest history that fails alike")
    parser.add_argument("--first", type=int, help="the first seed (default: by the clock)")
    parser.add_argument("--seeds", type=int, help="how many seeds (default: until stopped)")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"requests in a run (default: {REQUESTS})")
    parser.add_argument("--theme", choices=THEMES, nargs="+", help="one or several (default: by the seed)")
    parser.add_argument("--stop-at-first", action="store_true", help="stop at the first seed that breaks a rule")
    parser.add_argument("--quiet", action="store_true", help="do not look for a shorter history")
    parser.add_argument("--json", action="store_true", help="print broken rules as JSON, one line each")
    return parser.parse_args()


def theme_of(seed: int, themes: list[Theme] | None) -> Theme | None:
    """Of several themes, the seeds have each in turn. None: as the seed wants."""
    return themes[seed % len(themes)] if themes else None


def _report(done: SimulatedRun, *, as_json: bool, requests: int) -> None:
    for broken in done.broken[:1]:
        if as_json:
            facts = {"seed": done.plan.seed, "rule": broken.rule, "detail": broken.detail, "requests": requests}
            say(msgspec.json.encode(facts).decode())
        else:
            say(f"seed {done.plan.seed}: {broken.rule}: {broken.detail}")
            words = f"--seed {done.plan.seed} --theme {done.plan.theme} --requests {len(done.plan.requests)}"
            say(f'  replay it with: make simulate ARGS="{words}"')


def _replay(seed: int, requests: int, theme: Theme | None, *, is_quiet: bool) -> int:
    plan = make_plan(seed, requests=requests, theme=theme)
    done = run_plan(plan)
    say(f"seed {seed}: {plan.theme}, {plan.database}, {plan.processes} processes, digest {done.digest}")
    if not done.broken:
        say(f"{done.requests} requests, {done.whole} whole replies, no rule is broken")
        return 0
    if not is_quiet:
        plan = shrink(plan, done.broken[0].rule, lambda text: say(f"shortening: {text}"))
    done = run_plan(plan, is_traced=True)
    say("\n".join(done.trace))
    for broken in done.broken:
        say(f"{broken.rule}: {broken.detail} (at {broken.at_s} s)")
    return 1


if __name__ == "__main__":
    sys.exit(main())
