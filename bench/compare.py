"""Does one commit cost more than another? `python -m bench.compare REV_A REV_B`, where `.` is the working tree.

Both run with the packages of this environment, in alternating rounds (A B A B …), so a slow phase of the machine
affects both. The verdict is the median of the ratios per round: above the limit, the exit code is 1. Instructions are
compared too if the machine can count them, because they vary less than CPU time.
"""

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

import msgspec
from rich.console import Console

from bench.gateways.base import Running, running
from bench.gateways.cadenza import Cadenza
from bench.gateways.install import ROOT
from bench.instructions import Instructions, unavailable_reason
from bench.machine import CannotRun
from bench.measure import QUICK, Pace, measure_plain, measure_streams
from bench.report import number, table
from bench.testbed import progress_bar, upstream
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
    console = Console(stderr=True)
    reason = unavailable_reason()
    if reason:
        console.print(f"Instructions are not counted: {reason}", markup=False)
    pace = msgspec.structs.replace(QUICK, plain_s=options.seconds, burst_s=options.seconds, spaced_s=options.seconds)
    try:
        with upstream() as (folder, port), progress_bar(console, 2 * options.rounds) as step:
            sides = [make_side(folder / name, revision) for name, revision in zip("ab", options.revisions, strict=True)]
            for number_of_round in range(options.rounds):
                for side in sides:
                    step(f"round {number_of_round + 1}: {side.revision}")
                    with running(side.gateway, side.folder, port) as started:
                        measure_side(side, started, pace, is_counted=not reason)
    except CannotRun as fault:
        console.print(f"bench: {fault}", markup=False)
        return 1
    return judge(sides[0], sides[1], options.limit)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description="Compare the cost of two revisions.")
    parser.add_argument("revisions", nargs=2, metavar="REV", help="two Git revisions; '.' is the working tree")
    parser.add_argument("--rounds", type=int, default=5, help="rounds to run on each side (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="duration of each of a round's three loads (default: %(default)s)"
    )
    parser.add_argument(
        "--limit", type=float, default=1.10, help="largest B/A ratio that passes (default: %(default)s)"
    )
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


def measure_side(side: Side, started: Running, pace: Pace, *, is_counted: bool) -> None:
    """One round: CPU time and, if counted, instructions per plain request and per stream."""
    with Instructions(started.tree, is_on=is_counted) as counted:
        plain = measure_plain(started, pace, side.folder)
    _record(side, "plain request, CPU µs", plain.cpu_us)
    _record(side, "plain request, instructions", counted.per(plain.served))
    for name, shape in STREAMS.items():
        with Instructions(started.tree, is_on=is_counted) as counted:
            cost, _ = measure_streams(started.tree, started.target, shape, pace.burst_s)
        _record(side, f"{name}, CPU µs", cost.cpu_us)
        _record(side, f"{name}, instructions", counted.per(cost.served))


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


def _record(side: Side, name: str, value: float | None) -> None:
    if value is not None:
        side.figures.setdefault(name, []).append(value)


if __name__ == "__main__":
    sys.exit(main())
