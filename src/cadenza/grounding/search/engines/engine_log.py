"""What the log says about an engine: when it begins to fail, when it rests, and when it works again.

    state    a failure                 a rest                    an answer
    WORKING  a warning, FAILING        a warning, RESTING        -
    FAILING  -                         a warning, RESTING        a line, WORKING
    RESTING  -                         if its reason is new      a line, WORKING

So an engine that is away for a day leaves two warnings. One that fails now and then leaves one a minute: a warning
within a minute of the last one is not written, unless the rest itself is longer. Lines have the engine's name and the
reason (see `base`), never a query or an address.
"""

import math
from collections.abc import Callable
from enum import Enum, auto

from cadenza.grounding.search.engines.base import Engine
from cadenza.grounding.search.records import EngineFailed, Hit
from cadenza.observe import Log

QUIET_S = 60.0


class _Told(Enum):
    """What the log said last."""

    WORKING = auto()
    FAILING = auto()
    RESTING = auto()


class EngineLog:
    """Writes about one engine. The clock counts seconds and never goes back."""

    def __init__(self, name: str, log: Log, clock: Callable[[], float]) -> None:
        self._name = name
        self._log = log
        self._clock = clock
        self._told = _Told.WORKING
        self._reason = ""
        self._warned_s = -math.inf

    def fails(self, reason: str) -> None:
        if self._told is _Told.WORKING and not self._is_quiet():
            self._warn("the search engine fails", reason, _Told.FAILING)

    def rests(self, reason: str, rest_s: float) -> None:
        is_news = self._told is not _Told.RESTING or self._reason != reason
        if is_news and (self._told is _Told.FAILING or rest_s >= QUIET_S or not self._is_quiet()):
            self._warn("the search engine rests", reason, _Told.RESTING, rest_s=round(rest_s, 1))

    def works(self) -> None:
        if self._told is not _Told.WORKING:
            self._told = _Told.WORKING
            self._log.info("the search engine works again", engine=self._name)

    def _is_quiet(self) -> bool:
        return self._clock() < self._warned_s + QUIET_S

    def _warn(self, event: str, reason: str, told: _Told, **facts: float) -> None:
        self._told, self._reason, self._warned_s = told, reason, self._clock()
        self._log.warning(event, engine=self._name, reason=reason, **facts)


class LoggedEngine:
    """An engine that never rests, and whose failures are logged."""

    def __init__(self, engine: Engine, engine_log: EngineLog) -> None:
        self.name = engine.name
        self._engine = engine
        self._engine_log = engine_log

    async def search(self, query: str, count: int) -> list[Hit]:
        try:
            hits = await self._engine.search(query, count)
        except EngineFailed as failed:
            self._engine_log.fails(failed.reason)
            raise
        self._engine_log.works()
        return hits

    async def close(self) -> None:
        await self._engine.close()
