"""The rate of each key, and the headers that tell a client about it."""

import time
from collections.abc import Callable

from cadenza.core.errors import RateLimited
from cadenza.core.rates import NS_PER_MS, Limits, Rate, Ticket, take_ticket
from cadenza.core.records import Principal

SWEEP_EVERY = 10_000


class Rates:
    """One number per key, forgotten once its burst is full again. Only live keys are asked, so memory is bounded."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._whole_at_ns: dict[str, int] = {}
        self._sweep_at = SWEEP_EVERY

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._whole_at_ns)

    def take(self, key: str, rate: Rate) -> Ticket:
        now_ns = self._clock_ns()
        whole_at_ns, ticket = take_ticket(self._whole_at_ns.get(key, 0), now_ns, rate)
        self._whole_at_ns[key] = whole_at_ns
        if len(self._whole_at_ns) >= self._sweep_at:
            self._sweep(now_ns)
        return ticket

    def _sweep(self, now_ns: int) -> None:
        self._whole_at_ns = {key: at_ns for key, at_ns in self._whole_at_ns.items() if at_ns > now_ns}
        self._sweep_at = len(self._whole_at_ns) + SWEEP_EVERY


def rate_of(principal: Principal, limits: Limits) -> Rate:
    """The key's own rate, where it has one."""
    if principal.requests_per_second is None and principal.burst is None:
        return limits.rate
    return Rate(principal.requests_per_second or limits.rate.per_s, principal.burst or limits.rate.burst)


def rate_headers(ticket: Ticket) -> bytes:
    """As they stand on the wire."""
    return (
        b"x-ratelimit-limit-requests: %d\r\nx-ratelimit-remaining-requests: %d\r\nx-ratelimit-reset-requests: %b\r\n"
    ) % (ticket.limit, ticket.remaining, _duration(ticket.reset_ns))


def rate_exceeded(ticket: Ticket, rate: Rate) -> RateLimited:
    return RateLimited(
        f"This key may make {rate.per_s:g} requests a second, and {rate.burst} at once. Retry after the time in the "
        "retry-after-ms header.",
        ticket.wait_s,
    )


def _duration(time_ns: int) -> bytes:
    """As OpenAI writes it: 120ms, 1.5s."""
    time_ms = -(-time_ns // NS_PER_MS)
    if time_ms < 1000:
        return b"%dms" % time_ms
    return f"{time_ms / 1000:.3f}".rstrip("0").rstrip(".").encode() + b"s"
