"""Does one commit take more CPU time than another? `python -m bench.compare A B`, where `.` is the working tree.

Both run with the packages of this environment, in alternating rounds (A B A B …), so a slow phase of the machine
affects both. The verdict is the median of the ratios per round: above the limit, the exit code is 1. Instructions vary
less: `python -m bench.check --against A` counts them.
"""

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

import msgspec

from bench.gateways.base import Running, running
from bench.gateways.cadenza import Cadenza
from bench.gateways.install import ROOT
from bench.machine import CannotRun
from bench.measure import QUICK, Pace, measure_plain, measure_streams
from bench.report import number, table
from bench.testbed import step, upstream
from bench.workload import BURST, SPACED, Shape

HERE = "."
STREAMS: dict[str, Shape] = {"stream": BURST, "spaced stream": SPACED}


class Side(msgspec.Struct, frozen=True):
    """One of the two revisions: its gateway, its folder, and its figures by name, one per round."""

    revision: str
    gateway: Cadenza
    folder: Path
    source: Path
    figures: dict[str, list[float]] = {}


def main() -> int:
    options = read_options()
    pace = msgspec.structs.replace(QUICK, plain_s=options.seconds, burst_s=options.seconds, spaced_s=options.seconds)
    try:
        with upstream() as (folder, port):
            sides = [make_side(folder / name, revision) for name, revision in zip("ab", options.revisions, strict=True)]
            for number_of_round in range(options.rounds):
                for side in sides:
                    step(f"round {number_of_round + 1}: {side.revision}")
                    with running(side.gateway, side.folder, port) as started:
                        measure_side(side, started, pace)
    except CannotRun as fault:
        sys.stderr.write(f"bench: {fault}\n")
        return 1
    return judge(sides[0], sides[1], options.limit)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description="Compare the cost of two revisions.")
    parser.add_argument("revisions", nargs=2, metavar="REV", help="two Git revisions; '.' is the working tree")
    parser.add_argument("--rounds", type=int, default=5, help="rounds to run on each side (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each of a round's three loads (%(default)s)")
    parser.add_argument("--limit", type=float, default=1.10, help="largest B/A ratio that passes (%(default)s)")
    return parser.parse_args()


def make_side(folder: Path, revision: str) -> Side:
    """Extract the source of the revision into the folder; the repository is not changed."""
    if revision == HERE:
        return Side(revision, Cadenza(ROOT / "src"), folder / "run", ROOT / "src")
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", revision, "src"]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode != 0:
        raise CannotRun(f"unknown revision {revision!r}: {archive.stderr.decode().strip()}")
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)  # noqa: S607 on the PATH
    return Side(revision, Cadenza(folder / "src"), folder / "run", folder / "src")


def measure_side(side: Side, started: Running, pace: Pace) -> None:
    """One round."""
    costs = {"plain request": measure_plain(started, pace, side.folder)}
    for name, shape in STREAMS.items():
        costs[name], _ = measure_streams(started.tree, started.target, shape, pace.burst_s)
    for name, cost in costs.items():
        if cost.cpu_us is not None:
            side.figures.setdefault(f"{name}, CPU µs", []).append(cost.cpu_us)


def judge(before: Side, after: Side, limit: float) -> int:
    rows, is_over = [], False
    for name, figures in before.figures.items():
        pairs = zip(figures, after.figures.get(name, []), strict=False)
        ratios = [new / old for old, new in pairs]
        if not ratios:
            continue
        ratio = statistics.median(ratios)
        is_over = is_over or ratio > limit
        spread = f"{min(ratios):.3f} – {max(ratios):.3f}"
        medians = (number(statistics.median(side.figures[name])) for side in (before, after))
        rows.append((name, *medians, f"{ratio:.3f}", spread, "over" if ratio > limit else "passes"))
    head = ("", before.revision, after.revision, "ratio", "range", f"limit {limit:.2f}")
    sys.stdout.write(table(head, rows) + "\n")
    return 1 if is_over or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
