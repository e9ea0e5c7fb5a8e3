"""The log, the metrics, and the record of every request. Any module above may import it; it imports core and clock."""

import asyncio
import os
import signal
from collections.abc import Callable

from msgspec import UNSET

from cadenza import clock
from cadenza.core.attempts import AttemptCounts
from cadenza.core.records import Outcome
from cadenza.observe.details import DetailBuffer
from cadenza.observe.log import Log, RequestLine, loop_errors, make_log, places
from cadenza.observe.metrics import Metrics
from cadenza.observe.strays import catch_strays

__all__ = ["FaultPoint", "Log", "LoopLag", "Metrics", "Observer", "catch_strays", "loop_errors", "make_log", "places"]


LAG_EVERY_S = 0.25


class LoopLag:
    """Measures how late the event loop runs a timer, again and again: everything that runs on it is as late."""

    def __init__(self, metrics: Metrics) -> None:
        self._loop = asyncio.get_running_loop()
        self._lag = metrics.loop_lag
        self._wait()

    def _wait(self) -> None:
        self._due_s = self._loop.time() + LAG_EVERY_S
        self._timer = self._loop.call_at(self._due_s, self._measure)

    def _measure(self) -> None:
        self._lag.add("", max(0.0, self._loop.time() - self._due_s))  # uvloop may be some microseconds early
        self._wait()

    def stop(self) -> None:
        self._timer.cancel()


class FaultPoint:
    """Lets a test kill the process at a named step: `held`, or `written:3` for the third time it is reached.

    It is armed only by the environment. Not armed, a call costs one comparison.
    """

    def __init__(self, armed: str | None = None) -> None:
        self._name, _, times = (armed or "").partition(":")
        self._left = int(times or 1)

    def reach(self, name: str) -> None:
        if name == self._name:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)

    __call__ = reach


class Observer:
    """The log and the metrics that all parts of the service report to, and the fault point of a test."""

    def __init__(self, log: Log, at: FaultPoint | None = None) -> None:
        self.log = log
        self.metrics = Metrics(lambda: log.dropped)
        self.attempts = AttemptCounts(clock.now_ms)  # until they are written
        self.details = DetailBuffer()  # until they are written
        self.at: Callable[[str], object] = at.reach if at else len  # a builtin does nothing in the shortest time

    def record(self, outcome: Outcome, charged_nano: int = 0, cost_nano: int | None = None) -> None:
        """Count a request that ended, and write its log line. `cost_nano` is what the providers charge, if known."""
        metrics, class_id, provider, usage = self.metrics, outcome.class_id, outcome.provider, outcome.usage
        metrics.requests.counts[outcome.endpoint, outcome.status] += 1
        metrics.duration.add(outcome.endpoint, outcome.duration_ms / 1000)
        if is_held := bool(outcome.completion_id):
            if outcome.first_byte_ms is not None:
                metrics.first_byte.add(class_id, outcome.first_byte_ms / 1000)
            if outcome.gap_ms is not None:
                metrics.stream_gap.add(class_id, outcome.gap_ms / 1000)
        if usage:
            counts = metrics.served.counts[class_id, provider]
            counts.prompt += usage.prompt_tokens
            counts.cached += usage.cached_tokens
            counts.completion += usage.completion_tokens
            if cost_nano is None:
                counts.unknown_nano += charged_nano
            else:
                counts.charged_nano += charged_nano
                counts.cost_nano += cost_nano
        self.details.note(outcome)
        if outcome.has_doubtful_usage:
            metrics.doubtful_usage.labels(provider).inc()
            self.log.warning("an upstream's counts cannot be true", request_id=outcome.request_id, provider=provider)
        line = RequestLine(
            outcome.request_id,
            outcome.endpoint,
            outcome.status,
            outcome.duration_ms,
            outcome.key_id or UNSET,
            outcome.completion_id or UNSET,
            class_id if is_held else UNSET,
            UNSET if outcome.version is None else outcome.version,
            provider if is_held else UNSET,
            usage.prompt_tokens if usage else UNSET,
            usage.completion_tokens if usage else UNSET,
            outcome.fault or UNSET,
            outcome.cause or UNSET,
        )
        self.log.request(line)
