"""The circuit breaker of a search engine, so that requests do not wait for one that fails, and what the log says of it.

The circuit opens after 3 faults in a row for 30 s, or for as long as the engine's rate limit lasts; a failed trial
opens it again. A search that began before it opened changes nothing when it ends. While it is open, a search fails at
once with the reason `resting`.

The log has a warning when the engine begins to fail, another one if the reason changes, and a line when it works again:
an engine that is down for a day leaves one warning. One that fails now and then leaves one a minute: a warning within a
minute of the last one is not written, unless the circuit stays open for longer. Lines have the engine's name and the
reason (see `base`), never a query or an address.
"""

import math
from collections.abc import Callable

from cadenza.core.breaker import CLOSED, OPEN, Breaker, BreakerLimits
from cadenza.observe import Log
from cadenza.parts.grounding.search.engines.base import Engine
from cadenza.parts.grounding.search.records import EngineFailed, Hit

OPEN_S = 30.0
BUSY_S_MIN = 1.0
BUSY_S_MAX = 3600.0
LIMITS = BreakerLimits(faults_to_open=3, open_s_min=OPEN_S, open_s_max=OPEN_S, trial_s=math.inf)
QUIET_S = 60.0


class GuardedEngine:
    """An engine behind its circuit breaker. The clock counts seconds and never goes back."""

    def __init__(self, engine: Engine, clock: Callable[[], float], log: Log) -> None:
        self.name = engine.name
        self._engine = engine
        self._clock = clock
        self._breaker = Breaker(clock(), LIMITS)
        self._opened_s = -math.inf
        self._log = log
        self._logged = ""  # the reason of the last warning; empty once the engine works again
        self._warned_s = -math.inf

    async def search(self, query: str, count: int) -> list[Hit]:
        started_s = self._clock()
        state = self._breaker.state(started_s)
        is_trial = state is not CLOSED
        if state is OPEN or (is_trial and not self._breaker.begin_trial(started_s)):
            raise EngineFailed("resting")
        try:
            hits = await self._engine.search(query, count)
        except EngineFailed as failed:
            if started_s > self._opened_s:
                self._note_failure(failed, started_s, is_trial=is_trial)
            raise
        finally:
            if is_trial:
                self._breaker.end_trial()
        if started_s > self._opened_s:
            self._note_answer(started_s)
        return hits

    async def close(self) -> None:
        await self._engine.close()

    def _note_answer(self, started_s: float) -> None:
        self._breaker.record_response(started_s)
        if self._logged:
            self._logged = ""
            self._log.info("the search engine works again", engine=self.name)

    def _note_failure(self, failed: EngineFailed, started_s: float, *, is_trial: bool) -> None:
        now_s, open_s = self._clock(), 0.0
        if failed.reason == "refused":  # the engine works
            self._note_answer(started_s)
            return
        if failed.reason == "no_files":  # which says nothing about the engine
            return
        if failed.reason == "busy":
            asked_s = OPEN_S if failed.retry_after_s is None else failed.retry_after_s
            open_s = min(max(asked_s, BUSY_S_MIN), BUSY_S_MAX)
        elif is_trial or self._breaker.record_fault(started_s, now_s, has_answered=False, is_busy=False):
            open_s = OPEN_S
        if open_s:
            self._breaker.open(now_s, open_s, is_busy=False)
            self._opened_s = now_s
        is_quiet = now_s < self._warned_s + QUIET_S and open_s < QUIET_S
        if failed.reason != self._logged and not is_quiet:
            self._logged, self._warned_s = failed.reason, now_s
            self._log.warning(
                "the search engine fails", engine=self.name, reason=failed.reason, open_s=round(open_s, 1)
            )
