"""An engine whose answers the test gives, and a clock that only the test moves."""

import asyncio
import io
from collections.abc import Callable

from cadenza.observe import make_log
from cadenza.parts.grounding.search.engines.base import Engine
from cadenza.parts.grounding.search.engines.guard import GuardedEngine
from cadenza.parts.grounding.search.records import EngineFailed, Hit

HITS = [Hit("https://a.example/", "A title", "A snippet")]


class SecondsClock:
    """Called like `time.monotonic`."""

    def __init__(self) -> None:
        self._now_s = 1000.0

    def __call__(self) -> float:
        return self._now_s

    def advance(self, time_s: float) -> None:
        self._now_s += time_s


class ScriptedEngine:
    """Answers with its hits or its failure. While it is held, searches wait for `release`."""

    def __init__(self, name: str = "scripted") -> None:
        self.name = name
        self.hits = list(HITS)
        self.failure: Callable[[], EngineFailed] | None = None
        self.asked = list[str]()
        self.is_closed = False
        self._may_answer = asyncio.Event()
        self._may_answer.set()

    def hold(self) -> None:
        self._may_answer.clear()

    def release(self) -> None:
        self._may_answer.set()

    async def search(self, query: str, count: int) -> list[Hit]:
        self.asked.append(query)
        await self._may_answer.wait()
        if self.failure:
            raise self.failure()
        return self.hits[:count]

    async def close(self) -> None:
        self.is_closed = True


def guarded(engine: Engine, clock: SecondsClock, written: io.StringIO | None = None) -> GuardedEngine:
    return GuardedEngine(engine, clock, make_log(written or io.StringIO()))
