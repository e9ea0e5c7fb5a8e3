"""How many requests a route is given at once: an adaptive concurrency limit.

It falls with each sign of overload (429, 503, 529 or a timeout), and while first tokens take far longer than usual. It
rises with answers while it is in demand, and returns to its maximum after a minute without a sign of overload.
"""

import math

FEW = 8  # with fewer in flight, a refusal has another reason than their number
STEP_DOWN = 0.7
STEP_DOWN_SLOW = 0.9
STEP_DOWN_SLOWEST = 0.5
STEP_UP = 0.1  # per answer, while the ceiling is in demand
RECOVER_S = 60.0
SLOW_FACTOR = 3.0
SLOW_S_MIN = 0.1  # a smaller delay is noise
RECENT_WEIGHT = 0.1
USUAL_WEIGHT = 0.002


class FirstTokenTimes:
    """How long first tokens take: recently, and usually. Streams and non-streaming replies have one each."""

    def __init__(self) -> None:
        self.recent_s = 0.0
        self._usual_s = 0.0

    def note(self, took_s: float, is_loaded: bool = False) -> None:
        """Slowness under load does not become usual; an answer faster than usual always counts."""
        if not self._usual_s:
            self._usual_s = self.recent_s = took_s
        self.recent_s += (took_s - self.recent_s) * RECENT_WEIGHT
        if not is_loaded or took_s < self._usual_s:
            self._usual_s += (took_s - self._usual_s) * USUAL_WEIGHT

    @property
    def is_slow(self) -> bool:
        return self.recent_s > self._usual_s * SLOW_FACTOR and self.recent_s - self._usual_s > SLOW_S_MIN

    @property
    def step(self) -> float:
        """The factor by which a slow route's ceiling falls: the slower, the lower, but not below a half."""
        return min(STEP_DOWN_SLOW, max(STEP_DOWN_SLOWEST, self._usual_s * SLOW_FACTOR / self.recent_s))


class Ceiling:
    """The limit of one route. Times are the caller's."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._level = float(most)
        self._lowered_s = -math.inf

    def limit(self, now_s: float) -> int:
        if self._level < self._most and now_s - self._lowered_s > RECOVER_S:
            self.reset()
        return int(self._level)

    def reset(self) -> None:
        self._level = float(self._most)
        self._lowered_s = -math.inf

    def lower(self, in_flight: int, started_s: float, now_s: float) -> None:
        """The route is overloaded. A request that was sent before the last step down does not count."""
        if in_flight >= FEW and started_s > self._lowered_s:
            self._level = min(self._level, in_flight) * STEP_DOWN
            self._lowered_s = now_s

    def lower_if_due(self, times: FirstTokenTimes, now_s: float) -> None:
        """The route is slow: one step down, then time for it to take effect."""
        if now_s - self._lowered_s > times.recent_s:
            self._level = max(min(self._level, FEW), self._level * times.step)
            self._lowered_s = now_s

    def raise_by_answer(self, in_flight: int) -> None:
        if self._level < self._most and in_flight * 2 >= self._level:
            self._level = min(self._most, self._level + STEP_UP)
