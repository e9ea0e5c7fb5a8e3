"""A monotonic clock that only the test moves."""

import time

from cadenza.core.rates import NS_PER_S


class Clock:
    """Called like `time.monotonic_ns`."""

    def __init__(self) -> None:
        self._now_ns = time.monotonic_ns()

    def __call__(self) -> int:
        return self._now_ns

    def advance(self, time_s: float) -> None:
        self._now_ns += round(time_s * NS_PER_S)
