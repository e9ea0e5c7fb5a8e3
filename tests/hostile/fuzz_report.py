"""What comes out of a fuzzer, and its command line."""

import argparse
import collections
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec
import uvloop

SHOWN_MAX = 10


class Compared(Protocol):
    """The bytes of one case, and what our side and the reference made of them."""

    @property
    def sent(self) -> bytes: ...

    @property
    def ours(self) -> Any: ...

    @property
    def theirs(self) -> Any: ...


class Report(msgspec.Struct):
    """How often both sides agreed, the deliberate differences with their counts, and every other difference."""

    cases: int = 0
    accepted: int = 0
    refused: int = 0
    deliberate: collections.Counter[str] = msgspec.field(default_factory=collections.Counter)
    others: list[Any] = []

    def add(self, case: Compared, accepted: int, reason: str | None) -> None:
        """Both sides accepted so much of the case alike. The reason is that of a deliberate difference."""
        self.cases += 1
        self.accepted += accepted
        self.refused += not case.ours and not case.theirs
        if case.ours == case.theirs:
            return
        if reason:
            self.deliberate[reason] += 1
        else:
            self.others.append(case)


def main(name: str, run: Callable[[int, int], Coroutine[Any, Any, Report]]) -> int:
    """Run a fuzzer for as many cases as the command line says, and print its report."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.hostile.{name}")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    report = uvloop.run(run(options.cases, options.seed))
    write = sys.stdout.write
    write(f"{report.cases} cases: {report.accepted} accepted alike, {report.refused} refused alike\n")
    for reason, count in report.deliberate.most_common():
        write(f"{count:8} {reason}\n")
    write(f"{len(report.others):8} other differences\n")
    for case in report.others[:SHOWN_MAX]:
        write(f"\nsent   {case.sent!r}\nours   {case.ours}\ntheirs {case.theirs}\n")
    return 1 if report.others else 0
