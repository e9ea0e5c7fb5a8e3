"""Runs tests on sources with a mistake in them: `make mutants`, or `make mutants ARGS="--only gateway/auth.py"`.

The mistakes are in the text files beside this one, one for each package. After `@` stands a file of `src/cadenza` and
the tests that should find its mutants; a mutant is a line of that file, which occurs once, and the line that replaces
it. Each mutant is a copy of `src` in a temporary folder, on which the tests run until one fails. The exit code is 1 if
a mutant without `unseen:`, which says why no test can see it, was not found.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from os import environ
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
PYTEST = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-m", "not slow and not release"]
TESTS_S = 300.0  # tests that take longer have found an endless loop
FAILED = re.compile(r"^(?:FAILED|ERROR) ([^ \n]+)", re.MULTILINE)
NO_TESTS = 5  # pytest's exit code


class Mutant(msgspec.Struct):
    """A line, what replaces it, and the tests that should find the mistake."""

    number: int
    file: str
    tests: list[str]
    old: str = ""
    new: str = ""
    unseen: str = ""

    def apply(self, text: str) -> str:
        """The text of the file with the mistake. ValueError if the line does not occur exactly once."""
        lines = text.split("\n")
        places = [place for place, line in enumerate(lines) if line.strip() == self.old]
        if len(places) != 1:
            raise ValueError(f"{len(places)} times in {self.file}: {self.old}")
        line = lines[places[0]]
        lines[places[0]] = line[: len(line) - len(line.lstrip())] + self.new
        return "\n".join(lines)


class Verdict(msgspec.Struct, frozen=True):
    """The test that found a mutant, or nothing."""

    mutant: Mutant
    found_by: str
    took_s: float

    @property
    def row(self) -> str:
        mutant = self.mutant
        result = self.found_by or (f"unseen: {mutant.unseen}" if mutant.unseen else "NOT FOUND")
        return f"{mutant.number:4} {self.took_s:5.0f} s  {mutant.file}: {mutant.new}\n{'':13}{result}"


def read_mutants() -> Iterator[Mutant]:
    """All mutants, numbered from 1."""
    number, file, tests, old = 0, "", list[str](), ""
    found: Mutant | None = None
    lists = [path.read_text().splitlines() for path in sorted(Path(__file__).parent.glob("*.txt"))]
    for line in filter(None, chain.from_iterable(lists)):
        mark, _, rest = line.partition(" ")
        if mark == "@":
            file, _, paths = rest.partition(":")
            tests = paths.split()
        elif mark == "-":
            old = rest
        elif mark == "+":
            if found:
                yield found
            number += 1
            found = Mutant(number, file, tests, old, rest)
        elif mark == "unseen:" and found:
            found.unseen = rest
        elif mark != "#":
            raise ValueError(f"not a line of a list of mutants: {line!r}")
    if found:
        yield found


def run(mutant: Mutant) -> Verdict:
    """Run the tests on a copy of the source with the mistake."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cadenza-mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source)  # with what is compiled, which stays valid
        changed = source / "cadenza" / mutant.file
        changed.write_text(mutant.apply(changed.read_text()))
        found_by = _first_failure(mutant.tests, source)
    return Verdict(mutant, found_by, time.monotonic() - began_s)


def _first_failure(tests: list[str], source: Path) -> str:
    """The first test that fails on this source, or nothing."""
    command = ["nice", sys.executable, *PYTEST, *tests]
    variables = environ | {"PYTHONPATH": str(source)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=TESTS_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "no end"
    if done.returncode in (0, NO_TESTS):
        return ""
    failed = FAILED.search(done.stdout)
    return failed[1] if failed else (done.stdout + done.stderr).strip()[-80:]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", metavar="TEXT", help="run mutants whose file or line has this in it")
    parser.add_argument("--at-once", type=int, default=2, help="how many mutants (default: 2)")
    options = parser.parse_args()
    listed = [*read_mutants()]
    chosen = [one for one in listed if not options.only or options.only in f"{one.file}: {one.old} {one.new}"]
    began_s, verdicts = time.monotonic(), list[Verdict]()
    with ThreadPoolExecutor(options.at_once) as pool:
        for verdict in pool.map(run, chosen):
            verdicts.append(verdict)
            print(verdict.row, flush=True)  # noqa: T201 a report
    found = sum(bool(one.found_by) for one in verdicts)
    print(f"{found} of {len(chosen)} were found in {time.monotonic() - began_s:.0f} s.")  # noqa: T201
    return any(not one.found_by and not one.mutant.unseen for one in verdicts)


if __name__ == "__main__":
    sys.exit(main())
