"""The requests whose details are worth a row in the store: refused, failed, retried, slow or grounded.

A plain request has its metering row, and costs a few comparisons here. What waits to be written is bounded, and so is
what one account can add, with all its keys: the table has a largest size, and nobody may push the rows of others out of
it at no cost. An account that is refused again and again leaves a few rows a minute.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from cadenza import clock
from cadenza.core.records import Outcome

ERROR_STATUS = 400  # and above
SLOW_FIRST_BYTE_MS = 5_000
SLOW_SETTLE_MS = 1_000
WAITING_MAX = 1_000
ALIKE_MAX = 20  # of one account with one status: charged ones between two writes, all others in UNCHARGED_S
UNCHARGED_S = 60.0


class EndedRequest(NamedTuple):
    """An outcome, and how long after it the store had its charge; None where no credit was held."""

    outcome: Outcome
    settle_ms: int | None


class DetailBuffer:
    """What was noted since the last write."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._waiting: list[EndedRequest] = []
        self._charged: dict[tuple[str, int], int] = {}  # how many, by account and status
        self._uncharged: dict[tuple[str, int], int] = {}
        self._now_s = now_s
        self._forget_s = now_s() + UNCHARGED_S

    def note(self, outcome: Outcome) -> None:
        """Keep the details of a request that is not plain, if its key is known."""
        settle_ms = clock.now_ms() - outcome.ended_at if outcome.completion_id else 0
        if (
            outcome.status < ERROR_STATUS
            and not outcome.steps
            and settle_ms < SLOW_SETTLE_MS
            and (outcome.first_byte_ms or 0) < SLOW_FIRST_BYTE_MS
        ) or not outcome.account_id:
            return
        counts, alike = self._charged if outcome.usage else self._uncharged, (outcome.account_id, outcome.status)
        counts[alike] = count = counts.get(alike, 0) + 1
        if count <= ALIKE_MAX and len(self._waiting) < WAITING_MAX:
            self._waiting.append(EndedRequest(outcome, max(0, settle_ms) if outcome.completion_id else None))

    def take(self) -> list[EndedRequest]:
        """All that wait, oldest first."""
        taken, self._waiting = self._waiting, []
        self._charged.clear()
        if self._now_s() >= self._forget_s:
            self._forget_s = self._now_s() + UNCHARGED_S
            self._uncharged.clear()
        return taken

    def requeue(self, taken: list[EndedRequest]) -> None:
        """The store did not take them. The oldest show how it began, so they stay."""
        self._waiting = (taken + self._waiting)[:WAITING_MAX]
