"""Runs the simulation on sources with a mistake in them: `python -m tests.simulation.mutants [--only NAME]`.

The mistakes are in mutants.txt: after the name and what it does to the money, the text that it replaces in a file of
`src/cadenza`, where it occurs once, and the new text. `themes` are those of the runs that find it soonest. `unseen`
says why the simulation cannot see a mistake, `masked` which second check makes it harmless. Each mutant is a copy of
`src` in a temporary folder.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from os import environ
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
MUTANTS = Path(__file__).with_suffix(".txt")
SEEDS = 40
REQUESTS = 150  # of each seed: fewer than usual, so that there are more faults in the same time
SECONDS = 300.0
GRACE_S = 60.0  # a run that is still busy so long after its time is ended


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
    themes: str = ""  # of the runs; empty: all
    unseen: str = ""
    masked: str = ""


class Finding(msgspec.Struct):
    """What the simulation prints with `--json`, on its last line, when it has found a violation."""

    seed: int | None = None
    requests: int = 0  # of all seeds so far
    rule: str = ""
    detail: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """Whether a mutant was found: by which seed, after how many requests, and which rule it breaks."""

    mutant: Mutant
    result: str  # found, not found, unseen, or what else happened
    finding: Finding
    took_s: float

    @property
    def row(self) -> str:
        finding = self.finding
        seed = "" if finding.seed is None else str(finding.seed)
        note = finding.rule or self.mutant.unseen or self.mutant.masked
        return f"{self.mutant.name:40} {self.result:10} {seed:>6} {finding.requests:>8} {self.took_s:6.0f}  {note}"


def read_mutants(text: str) -> list[Mutant]:
    """The mutants of mutants.txt. Lines that are replaced by nothing are deleted."""
    found: list[Mutant] = []
    for line in text.splitlines():
        mark, _, rest = line.partition(" ")
        match mark:
            case "==":
                name, _, note = rest.partition(": ")
                found.append(Mutant(name, note))
            case "themes:":
                found[-1].themes = rest
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


def run(mutant: Mutant, seeds: int, requests: int, seconds: float) -> Verdict:
    """Simulate a copy of the source with the mistake, until a rule is broken."""
    began_s = time.monotonic()
    if mutant.unseen:
        return Verdict(mutant, "unseen", Finding(), 0.0)
    with tempfile.TemporaryDirectory(prefix="cadenza-mutant-") as folder:
        write_mutant(mutant, Path(folder))
        result, finding = simulate(Path(folder), mutant, seeds, requests, seconds)
    return Verdict(mutant, result, finding, time.monotonic() - began_s)


def simulate(
    source: Path, mutant: Mutant, seeds: int, requests: int = REQUESTS, seconds: float = SECONDS
) -> tuple[str, Finding]:
    """Run the simulation on a source: `found`, `not found`, or what else happened."""
    options = {"--first": 1, "--seeds": seeds, "--requests": requests, "--seconds": seconds}
    command = [sys.executable, "-m", "tests.simulation", "--stop-at-first", "--json"]
    command += [str(word) for option in options.items() for word in option]
    if mutant.themes:
        command += ["--theme", *mutant.themes.split()]
    environment = {**environ, "PYTHONPATH": f"{source}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run(
            command,
            cwd=source,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds + GRACE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "no end", Finding()
    finding = _read(ran.stdout)
    if ran.returncode == 0:
        return "not found", Finding()
    if ran.returncode == 1 and finding.seed is not None:  # also 1: a source that cannot be imported
        return "found", finding
    return f"failed ({ran.returncode})", Finding(rule=ran.stderr.strip().rpartition("\n")[2])


def _read(printed: str) -> Finding:
    for line in reversed(printed.splitlines()):
        try:
            return msgspec.json.decode(line, type=Finding)
        except msgspec.DecodeError:
            continue
    return Finding(rule=printed.strip().rpartition("\n")[2])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="run mutants whose name has this in it")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"at most (default: {SEEDS})")
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"of each seed (default: {REQUESTS})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for each mutant (default: {SECONDS:g})")
    parser.add_argument("--at-once", type=int, default=1, help="how many mutants (default: 1)")
    options = parser.parse_args()
    chosen = [
        one
        for one in read_mutants(MUTANTS.read_text())
        if not options.only or any(part in one.name for part in options.only)
    ]
    found = 0
    print(f"{'mutant':40} {'result':10} {'seed':>6} {'requests':>8} {'s':>6}  rule")  # noqa: T201 a report
    with ThreadPoolExecutor(options.at_once) as pool:
        for verdict in pool.map(lambda one: run(one, options.seeds, options.requests, options.seconds), chosen):
            found += verdict.result == "found"
            print(verdict.row, flush=True)  # noqa: T201
    print(f"{found} of {len(chosen)} were found.")  # noqa: T201
    expected = sum(not one.unseen and not one.masked for one in chosen)
    return 0 if found >= expected else 1


if __name__ == "__main__":
    sys.exit(main())
