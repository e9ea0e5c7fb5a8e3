"""A problem, and a rule that finds it in the facts. Pure. The core's rules are in health.py, a part's in its folder."""

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

import msgspec

from cadenza.observe.facts import Facts

Severity = Literal["page", "ticket"]  # clients fail or money is at stake now; or this week is soon enough


class Problem(msgspec.Struct, frozen=True):
    """What is wrong, and what to do."""

    kind: str
    severity: Severity
    words: str
    advice: str


class Found(NamedTuple):
    """What a rule found, as a sentence, and what to do first about it."""

    words: str = ""
    advice: str = ""


Find = Callable[[Facts], Iterator[Found]]


class Rule(NamedTuple):
    """A kind of problem. `find` is None for what only Prometheus sees, which remembers for days.

    A service with a blocking problem is not ready. `counters` are those that `find` wants to be kept, as in minutes.py.
    """

    kind: str
    severity: Severity
    title: str
    advice: str
    find: Find | None = None
    is_blocking: bool = False
    counters: Mapping[str, str] = {}

    def problem(self, words: str = "", advice: str = "") -> Problem:
        return Problem(self.kind, self.severity, f"{self.title} {words}".strip(), f"{advice} {self.advice}".strip())
