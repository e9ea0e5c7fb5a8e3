"""Runs the simulation on sources with a mistake in them: `python -m tests.simulation.mutants [--only NAME]`.

The mistakes are in mutants.txt: after the name and what it does to the money, the text that it replaces in a file of
`src/cadenza`, where it occurs once, and the new text. `unseen` says why the simulation cannot see a mistake, `masked`
which second check makes it harmless. Each mutant is a copy of `src` in a temporary folder.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from os import environ
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
MUTANTS = Path(__file__).with_suffix(".txt")
SEEDS = 200
COMMAND = ("-m", "tests.simulation", "--seeds", "{seeds}", "--stop-at-first", "--json")
TIMEOUT_S = 300.0
AT_ONCE = 2


class Edit(msgspec.Struct):
    """A text that occurs once in a file, and what replaces it."""

    file: str
    old: str = ""
    new: str = ""


class Mutant(msgspec.Struct):
    """A mistake, and what it does to the money."""

    name: str
    note: str
    edits: list[Edit] = []
    unseen: str = ""
    masked: str = ""


class Finding(msgspec.Struct):
    """What the simulation prints with `--json`, on its last line, when it has found a violation."""

    seed: int | None = None
    requests: int | None = None
    invariant: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """Whether a mutant was found: by which seed, after how many requests, by which invariant."""

    mutant: Mutant
    result: str  # found, not found, unseen, or what else happened
    finding: Finding
    took_s: float

    @property
    def row(self) -> str:
        finding = self.finding
        seed, requests = ("" if one is None else str(one) for one in (finding.seed, finding.requests))
        note = finding.invariant or self.mutant.unseen or self.mutant.masked
        return f"{self.mutant.name:40} {self.result:10} {seed:>6} {requests:>8} {self.took_s:6.0f}  {note}"


def read_mutants(text: str) -> list[Mutant]:
    """The mutants of mutants.txt. Lines that are replaced by nothing are deleted."""
    found: list[Mutant] = []
    for line in text.splitlines():
        mark, _, rest = line.partition(" ")
        match mark:
            case "==":
                name, _, note = rest.partition(": ")
                found.append(Mutant(name, note))
            case "unseen:":
                found[-1].unseen = rest
            case "masked:":
                found[-1].masked = rest
            case "@":
                found[-1].edits.append(Edit(rest))
            case "-":
                found[-1].edits[-1].old += f"{rest}\n"
            case "+":
                found[-1].edits[-1].new += f"{rest}\n"
            case "" | "#":
                continue
            case _:
                raise ValueError(f"not a line of mutants.txt: {line!r}")
    for edit in [edit for mutant in found for edit in mutant.edits if edit.new]:
        edit.old, edit.new = edit.old.removesuffix("\n"), edit.new.removesuffix("\n")
    return found


def mutated(mutant: Mutant, folder: Path) -> dict[str, str]:
    """The files that a mutant changes, by name. ValueError if one of its edits does not fit."""
    texts: dict[str, str] = {}
    for edit in mutant.edits:
        text = texts.get(edit.file) or (folder / edit.file).read_text()
        if text.count(edit.old) != 1:
            raise ValueError(f"{mutant.name}: {text.count(edit.old)} times in {edit.file}: {edit.old}")
        texts[edit.file] = text.replace(edit.old, edit.new)
    return texts


def write_mutant(mutant: Mutant, folder: Path) -> None:
    """Copy the source into a folder, with the mistake."""
    shutil.copytree(ROOT / "src", folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    for file, text in mutated(mutant, folder / "cadenza").items():
        (folder / "cadenza" / file).write_text(text)


def run_mutant(mutant: Mutant, command: Sequence[str], timeout_s: float) -> Verdict:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cadenza-mutant-") as folder:
        write_mutant(mutant, Path(folder))
        environment = {**environ, "PYTHONPATH": f"{folder}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            ran = subprocess.run(
                [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True,
                timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Verdict(mutant, "no end", Finding(), time.monotonic() - began_s)
    finding = _read(ran.stdout) if ran.returncode == 1 else Finding()
    result = {0: "not found", 1: "found"}.get(ran.returncode, f"failed ({ran.returncode})")
    if result.startswith("failed"):
        finding.invariant = ran.stderr.strip().rpartition("\n")[2]
    return Verdict(mutant, result, finding, time.monotonic() - began_s)


def _read(printed: str) -> Finding:
    for line in reversed(printed.splitlines()):
        try:
            return msgspec.json.decode(line, type=Finding)
        except msgspec.DecodeError:
            continue
    return Finding(invariant=printed.strip().rpartition("\n")[2])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="run mutants whose name has this in it")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--timeout-s", type=float, default=TIMEOUT_S, help="for each mutant")
    parser.add_argument(
        "--run", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="arguments of Python to run instead"
    )
    options = parser.parse_args()
    command = options.run or [part.format(seeds=options.seeds) for part in COMMAND]
    chosen = [
        one
        for one in read_mutants(MUTANTS.read_text())
        if not options.only or any(part in one.name for part in options.only)
    ]
    found = 0
    print(f"{'mutant':40} {'result':10} {'seed':>6} {'requests':>8} {'s':>6}  invariant")  # noqa: T201 a report
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for verdict in pool.map(lambda one: run_mutant(one, command, options.timeout_s), chosen):
            found += verdict.result == "found"
            print(verdict.row, flush=True)  # noqa: T201
    print(f"{found} of {len(chosen)} were found.")  # noqa: T201
    expected = sum(not one.unseen and not one.masked for one in chosen)
    return 0 if found >= expected else 1


if __name__ == "__main__":
    sys.exit(main())
