"""The rates of keys: a key may have its own, and the headers tell a client how it stands."""

import re

import pytest

from cadenza.core.rates import Limits, Rate, Ticket
from cadenza.core.records import Principal
from cadenza.gateway.rates import rate_exceeded, rate_headers, rate_of

USUAL = Limits(Rate(10.0, 20), 100)


@pytest.mark.parametrize(
    ("per_s", "burst", "rate"),
    [
        (None, None, Rate(10.0, 20)),
        (2.5, None, Rate(2.5, 20)),
        (None, 5, Rate(10.0, 5)),
        (2.5, 5, Rate(2.5, 5)),
    ],
)
def test_a_key_may_have_a_rate_of_its_own(per_s: float | None, burst: int | None, rate: Rate) -> None:
    """Where it has none, or only a part of one, the usual limits apply."""
    assert rate_of(Principal("key_a", "acct_a", frozenset(), "forte", per_s, burst), USUAL) == rate


@pytest.mark.parametrize(
    ("reset_ns", "shown"),
    [
        (1, "1ms"),
        (1_000_000, "1ms"),
        (1_000_001, "2ms"),
        (120_000_000, "120ms"),
        (999_000_000, "999ms"),
        (999_000_001, "1s"),
        (1_500_000_000, "1.5s"),
        (1_000_000_001, "1.001s"),
        (10_020_000_000, "10.02s"),
        (100_000_000_000, "100s"),
        (3_600_000_000_000, "3600s"),
    ],
)
def test_the_headers_show_the_rate(reset_ns: int, shown: str) -> None:
    """The limit, what remains of it, and the time until all of it is back, rounded up."""
    headers = rate_headers(Ticket(is_granted=True, limit=20, remaining=7, reset_ns=reset_ns))
    assert headers.decode().splitlines(keepends=True) == [
        "x-ratelimit-limit-requests: 20\r\n",
        "x-ratelimit-remaining-requests: 7\r\n",
        f"x-ratelimit-reset-requests: {shown}\r\n",
    ]


@pytest.mark.parametrize(
    ("wait_ns", "wait_s", "wait_ms"),
    [
        (1, 1, 1),
        (999_000_001, 1, 1000),
        (1_000_000_000, 1, 1000),
        (1_000_000_001, 2, 1001),
        (90_500_000_000, 91, 90500),
    ],
)
def test_a_refusal_says_how_long_to_wait(wait_ns: int, wait_s: int, wait_ms: int) -> None:
    """In whole seconds and in milliseconds, both rounded up; the message says what the key may do."""
    ticket = Ticket(is_granted=False, limit=20, remaining=0, reset_ns=wait_ns, wait_ns=wait_ns)
    refused = rate_exceeded(ticket, Rate(per_s=2.5, burst=20))
    assert dict(refused.headers) == {b"retry-after": b"%d" % wait_s, b"retry-after-ms": b"%d" % wait_ms}
    assert re.search(r"2\.5 requests a second.* 20 at once", refused.message)
