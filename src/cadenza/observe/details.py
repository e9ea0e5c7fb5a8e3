"""The requests whose details are worth a row in the store: refused, failed, retried, slow or grounded.

A plain request has its metering row, and costs a few comparisons here. What waits to be written is bounded, and so is
what one key can add: a client that is refused again and again leaves a few rows a second.
"""

import time
from typing import NamedTuple

from cadenza.core.records import Outcome

ERROR_STATUS = 400  # and above
SLOW_FIRST_BYTE_MS = 5_000
SLOW_SETTLE_MS = 1_000
WAITING_MAX = 1_000
ALIKE_MAX = 20  # of one key with one status, between two writes


class EndedRequest(NamedTuple):
    """An outcome, and how long after it the store had its charge; None where no credit was held."""

    outcome: Outcome
    settle_ms: int | None


class DetailBuffer:
    """What was noted since the last write."""

    def __init__(self) -> None:
        self._waiting: list[EndedRequest] = []
        self._alike: dict[tuple[str, int], int] = {}

    def note(self, outcome: Outcome) -> None:
        """Keep the details of a request that is not plain, if its key is known."""
        settle_ms = time.time_ns() // 1_000_000 - outcome.ended_at if outcome.completion_id else 0
        if (
            outcome.status < ERROR_STATUS
            and not outcome.steps
            and settle_ms < SLOW_SETTLE_MS
            and (outcome.first_byte_ms or 0) < SLOW_FIRST_BYTE_MS
        ) or not outcome.account_id:
            return
        alike = outcome.key_id, outcome.status
        self._alike[alike] = count = self._alike.get(alike, 0) + 1
        if count <= ALIKE_MAX and len(self._waiting) < WAITING_MAX:
            self._waiting.append(EndedRequest(outcome, max(0, settle_ms) if outcome.completion_id else None))

    def take(self) -> list[EndedRequest]:
        """All that wait, oldest first."""
        taken, self._waiting = self._waiting, []
        self._alike.clear()
        return taken

    def put_back(self, taken: list[EndedRequest]) -> None:
        """The store did not take them. The oldest show how it began, so they stay."""
        self._waiting = (taken + self._waiting)[:WAITING_MAX]
