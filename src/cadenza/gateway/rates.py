"""The rate of each key, and the headers that tell a client about it."""

from cadenza.core.errors import RateLimited
from cadenza.core.rates import NS_PER_MS, Limits, Rate, Ticket
from cadenza.core.records import Principal


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
