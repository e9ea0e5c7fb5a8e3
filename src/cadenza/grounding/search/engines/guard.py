"""The circuit breaker of a search engine, so that requests do not wait for one that fails, and what the log says of it.

The circuit opens after 3 faults in a row for 30 s, or for as long as the engine's rate limit lasts; a failed trial
opens it again. A search that began before it opened changes nothing when it ends. While it is open, a search fails at
once with the reason `resting`.

The log has a line when the state changes:

    state    a fault              the circuit opens       an answer
    WORKING  a warning, FAILING   a warning, OPEN         -
    FAILING  -                    a warning, OPEN         a line, WORKING
    OPEN     -                    if its reason is new    a line, WORKING

So an engine that is down for a day leaves two warnings. One that fails now and then leaves one a minute: a warning
within a minute of the last one is not written, unless the circuit stays open for longer. Lines have the engine's name
and the reason (see `base`), never a query or an address.
"""

import math
import sys
from collections.abc import Callable
from enum import Enum, auto

from cadenza.core.breaker import CLOSED, OPEN, Breaker, BreakerLimits
from cadenza.grounding.search.engines.base import Engine, EngineBusy
from cadenza.grounding.search.records import EngineFailed, Hit
from cadenza.observe import Log

OPEN_S = 30.0
BUSY_S_MIN = 1.0
BUSY_S_MAX = 3600.0
LIMITS = BreakerLimits(faults_to_open=3, open_s_min=OPEN_S, open_s_max=OPEN_S, trial_s=math.inf)
NEVER_OPENS = BreakerLimits(faults_to_open=sys.maxsize)
QUIET_S = 60.0


class Logged(Enum):
    """What the log said last."""

    WORKING = auto()
    FAILING = auto()
    OPEN = auto()


class GuardedEngine:
    """An engine behind its circuit breaker. The clock counts seconds and never goes back."""

    def __init__(self, engine: Engine, clock: Callable[[], float], log: Log, limits: BreakerLimits = LIMITS) -> None:
        self.name = engine.name
        self._engine = engine
        self._clock = clock
        self._breaker = Breaker(clock(), limits)
        self._opened_s = -math.inf
        self._log = log
        self._logged = Logged.WORKING
        self._reason = ""
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
        self._breaker.note_answer(started_s)
        if self._logged is not Logged.WORKING:
            self._logged = Logged.WORKING
            self._log.info("the search engine works again", engine=self.name)

    def _note_failure(self, failed: EngineFailed, started_s: float, *, is_trial: bool) -> None:
        now_s = self._clock()
        if failed.reason == "refused":  # the engine works
            self._note_answer(started_s)
        elif isinstance(failed, EngineBusy):
            asked_s = OPEN_S if failed.retry_after_s is None else failed.retry_after_s
            self._open(now_s, min(max(asked_s, BUSY_S_MIN), BUSY_S_MAX), failed.reason)
        elif failed.reason != "no_files":  # which says nothing about the engine
            if self._logged is Logged.WORKING and not self._is_quiet(now_s):
                self._warn(now_s, "the search engine fails", failed.reason, Logged.FAILING)
            if is_trial or self._breaker.note_fault(started_s, now_s, has_answered=False, is_busy=False):
                self._open(now_s, OPEN_S, failed.reason)

    def _open(self, now_s: float, open_s: float, reason: str) -> None:
        self._breaker.open(now_s, open_s, is_busy=False)
        self._opened_s = now_s
        is_news = self._logged is not Logged.OPEN or self._reason != reason
        if is_news and (self._logged is Logged.FAILING or open_s >= QUIET_S or not self._is_quiet(now_s)):
            self._warn(now_s, "the circuit of the search engine opened", reason, Logged.OPEN, open_s=round(open_s, 1))

    def _is_quiet(self, now_s: float) -> bool:
        return now_s < self._warned_s + QUIET_S

    def _warn(self, now_s: float, event: str, reason: str, logged: Logged, **facts: float) -> None:
        self._logged, self._reason, self._warned_s = logged, reason, now_s
        self._log.warning(event, engine=self.name, reason=reason, **facts)
