"""The two clocks of the service. Durations are measured with `elapsed_s`; what is stored and shown is `now_ms`."""

import time

BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # runs while the machine sleeps


def now_ms() -> int:
    """The time of day, in milliseconds since 1970. Somebody may set it."""
    return time.time_ns() // 1_000_000


def elapsed_s() -> float:
    """A clock that nobody can set, to measure how long something took."""
    return time.clock_gettime(BOOT_CLOCK)
