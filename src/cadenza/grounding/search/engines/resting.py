"""Rests an engine that fails, so that requests do not wait for it each time.

    state    a search                                          next
    WORKING  goes to the engine                                RESTING after 3 failures in a row, or when it is busy
    RESTING  fails at once with the reason `resting`           TRYING when the rest is over
    TRYING   one goes to the engine; meanwhile, others fail    WORKING by an answer, RESTING by a failure

A rest lasts 30 s, or as long as a busy engine asks for. Searches that began before a rest change nothing when they end.
The log says when an engine begins to fail, rests and works again (`engine_log`).
"""

import math
from collections.abc import Callable

import msgspec

from cadenza.grounding.search.engines.base import Engine, EngineBusy
from cadenza.grounding.search.engines.engine_log import EngineLog
from cadenza.grounding.search.records import EngineFailed, Hit

QUERY_FAULTS = {"refused"}  # the engine works
OUR_FAULTS = {"no_files"}  # nothing is known about the engine


class RestBounds(msgspec.Struct, frozen=True):
    """When an engine rests, and for how long."""

    failures_max: int = 3
    rest_s: float = 30.0
    busy_s_min: float = 1.0
    busy_s_max: float = 3600.0


class RestingEngine:
    """An engine that is left alone for a while when it fails. The clock counts seconds and never goes back."""

    def __init__(
        self, engine: Engine, clock: Callable[[], float], engine_log: EngineLog, bounds: RestBounds | None = None
    ) -> None:
        self.name = engine.name
        self._engine = engine
        self._clock = clock
        self._engine_log = engine_log
        self._bounds = bounds or RestBounds()
        self._failures = 0  # in a row
        self._rest_began_s = -math.inf
        self._rest_until_s = -math.inf  # no rest since the last answer
        self._is_trying = False

    async def search(self, query: str, count: int) -> list[Hit]:
        began_s = self._clock()
        is_trial = self._rest_until_s != -math.inf
        if is_trial and (began_s < self._rest_until_s or self._is_trying):
            raise EngineFailed("resting")
        self._is_trying = self._is_trying or is_trial
        try:
            hits = await self._engine.search(query, count)
        except EngineFailed as failed:
            if began_s > self._rest_began_s:
                self._note_failure(failed, is_trial=is_trial)
            raise
        finally:
            if is_trial:
                self._is_trying = False
        if began_s > self._rest_began_s:
            self._note_answer()
        return hits

    async def close(self) -> None:
        await self._engine.close()

    def _note_answer(self) -> None:
        self._failures = 0
        self._rest_until_s = -math.inf
        self._engine_log.works()

    def _note_failure(self, failed: EngineFailed, *, is_trial: bool) -> None:
        bounds = self._bounds
        if isinstance(failed, EngineBusy):
            asked_s = bounds.rest_s if failed.rest_s is None else failed.rest_s
            self._rest(min(max(asked_s, bounds.busy_s_min), bounds.busy_s_max), failed.reason)
        elif failed.reason in QUERY_FAULTS:
            self._note_answer()
        elif failed.reason not in OUR_FAULTS:
            self._failures += 1
            self._engine_log.fails(failed.reason)
            if is_trial or self._failures >= bounds.failures_max:
                self._rest(bounds.rest_s, failed.reason)

    def _rest(self, rest_s: float, reason: str) -> None:
        self._rest_began_s = self._clock()
        self._rest_until_s = self._rest_began_s + rest_s
        self._engine_log.rests(reason, rest_s)
