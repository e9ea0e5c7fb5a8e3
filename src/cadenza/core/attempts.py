"""Requests to providers that no metering row has, counted by day, provider, model and kind. No content, no ids.

A provider may bill them, so they explain a bill that differs from the metering rows (core/bills.py). Some have tokens:

| kind | the request |
|---|---|
| a kind of fault, such as `timed_out` | failed before it had an answer; another route may have answered instead |
| `continued` | is the beginning of an answer that another route continued |
| `continuation` | continued an answer: the provider counts the beginning as prompt, the metering row as completion |
| `trial`, `evaluation` | is not of a client: `cadenza doctor`, an evaluation |
| `watch` | the same, of release 0.1.0 |
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from cadenza.core.records import Route
from cadenza.core.spans import DAY_MS

CONTINUED, CONTINUATION = "continued", "continuation"
TRIAL, WATCH, EVALUATION = "trial", "watch", "evaluation"


class AttemptKey(NamedTuple):
    """What attempts are counted by. Days are counted since the epoch, in UTC."""

    day: int
    provider: str
    model: str
    kind: str


class AttemptSums(NamedTuple):
    """How many requests there were, and their tokens as far as they are known."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, other: "AttemptSums") -> "AttemptSums":
        return AttemptSums(*map(sum, zip(self, other, strict=True)))


class AttemptCounts:
    """The attempts that are not in the store yet. There are few keys: routes come from the config."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._counts: dict[AttemptKey, AttemptSums] = {}

    def add(self, route: Route, kind: str, prompt_tokens: int = 0, completion_tokens: int = 0) -> None:
        key = AttemptKey(self._now_ms() // DAY_MS, route.provider, route.model, kind)
        self._add(key, AttemptSums(1, prompt_tokens, completion_tokens))

    def take(self) -> dict[AttemptKey, AttemptSums]:
        """Everything that was counted since the last call."""
        taken, self._counts = self._counts, {}
        return taken

    def requeue(self, taken: Mapping[AttemptKey, AttemptSums]) -> None:
        """The store did not take them."""
        for key, sums in taken.items():
            self._add(key, sums)

    def _add(self, key: AttemptKey, sums: AttemptSums) -> None:
        self._counts[key] = self._counts.get(key, AttemptSums()).plus(sums)
