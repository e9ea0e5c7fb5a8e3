"""How the cost of a request changed: `python -m bench.history` counts instructions at commits of the current branch.

Commits that docs/performance/history.json does not have yet are measured as by `make bench-check`, about 20 s of CPU
each, all with the packages of this environment. A commit that cannot be measured is named and left out: the requests
of this bench need a config, a command line and a schema that it knows.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import msgspec

from bench.check import Counts, measure
from bench.gateways.install import ROOT
from bench.machine import CannotRun, interpreter
from bench.plots import draw_history

FOLDER = ROOT / "docs" / "performance"
EVERY = 12


class Measured(msgspec.Struct, frozen=True):
    """The instructions of each kind of request at one commit."""

    commit: str
    made_at: int  # Unix seconds
    interpreter: str
    instructions: Counts


def main() -> int:
    options = read_options()
    path = FOLDER / "history.json"
    history = read_history(path)
    known = {one.commit for one in history}
    chosen = list_commits()[:: -options.every]
    for commit, made_at in reversed([one for one in chosen if one[0] not in known]):
        try:
            counts = measure(commit)
        except (CannotRun, OSError) as reason:
            sys.stderr.write(f"{commit}: left out: {reason}\n")
            continue
        sys.stderr.write(f"{commit}: plain request {counts['plain request']:,}\n")
        history = sorted([*history, Measured(commit, made_at, interpreter(), counts)], key=lambda one: one.made_at)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(history)) + b"\n")
    draw_history([(one.made_at, one.instructions) for one in history], FOLDER)
    return 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.history", description="Plot the cost of requests over time.")
    parser.add_argument(
        "--every", type=int, default=EVERY, help="the newest commit and each Nth before it [%(default)s]"
    )
    return parser.parse_args()


def list_commits() -> list[tuple[str, int]]:
    """The commits of this branch itself, oldest first, each with its time."""
    command = ["git", "-C", str(ROOT), "log", "--first-parent", "--reverse", "--format=%h %ct"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    return [(commit, int(made_at)) for commit, _, made_at in (line.partition(" ") for line in lines if line)]


def read_history(path: Path) -> list[Measured]:
    return msgspec.json.decode(path.read_bytes(), type=list[Measured]) if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
