"""Rates against an exact token bucket: what is granted, what remains, and the exact wait after a refusal."""

import math
from fractions import Fraction
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.errors import RateLimited
from cadenza.core.rates import NS_PER_MS, NS_PER_S, Rate, Ticket, take_ticket

START_NS = 5 * NS_PER_S
RATES = st.builds(
    Rate,
    per_s=st.one_of(
        st.floats(0.001, 1_000_000.0),
        st.sampled_from([1 / 86_400, 1 / 3, 0.1, 1.0, 3.0, 7.0, 10.0, 999.0, 10_000.0, 1_000_000_000.0]),
    ),
    burst=st.one_of(st.integers(1, 5), st.integers(1, 1_000_000)),
)
GAPS = st.lists(  # between requests: quarters of a step, and a nanosecond more or less
    st.tuples(st.sampled_from([0, 0, 0, 1, 2, 3, 4, 4, 5, 7, 8, 40, 4_000]), st.integers(-1, 1)),
    min_size=1,
    max_size=60,
)
Gaps = list[tuple[int, int]]


class Bucket:
    """The reference: a token bucket in exact fractions. Each granted request takes one token."""

    def __init__(self, rate: Rate, now_ns: int) -> None:
        self.step_ns = Fraction(rate.step_ns)
        self.size = rate.burst
        self.tokens = Fraction(rate.burst)
        self.now_ns = now_ns

    def ask(self, now_ns: int) -> Ticket:
        self.tokens = min(self.tokens + (now_ns - self.now_ns) / self.step_ns, Fraction(self.size))
        self.now_ns = now_ns
        is_granted = self.tokens >= 1
        if is_granted:
            self.tokens -= 1
        return Ticket(
            is_granted=is_granted,
            limit=self.size,
            remaining=math.floor(self.tokens),
            reset_ns=math.ceil((self.size - self.tokens) * self.step_ns),
            wait_ns=0 if is_granted else math.ceil((1 - self.tokens) * self.step_ns),
        )


def times_ns(rate: Rate, gaps: Gaps) -> list[int]:
    return list(accumulate((max(0, quarters * rate.step_ns // 4 + more) for quarters, more in gaps), initial=START_NS))


def ask_all(rate: Rate, times: list[int]) -> list[Ticket]:
    tickets, whole_at_ns = [], 0
    for now_ns in times:
        whole_at_ns, ticket = take_ticket(whole_at_ns, now_ns, rate)
        tickets.append(ticket)
    return tickets


def exhausted(rate: Rate) -> int:
    """The state of a key that has just used its whole burst."""
    whole_at_ns, granted = 0, True
    while granted:
        whole_at_ns, ticket = take_ticket(whole_at_ns, START_NS, rate)
        granted = ticket.is_granted
    return whole_at_ns


@given(st.floats(0.001, 1_000_000.0))
def test_a_step_is_the_inverse_of_the_rate(per_s: float) -> None:
    """The time for one more request is exact to half a nanosecond."""
    assert abs(Rate(per_s, 1).step_ns - NS_PER_S / Fraction(per_s)) <= Fraction(1, 2)


@given(RATES, GAPS)
def test_tickets_equal_those_of_the_token_bucket(rate: Rate, gaps: Gaps) -> None:
    """For any rate and any times of requests, every ticket is exactly that of the reference."""
    times = times_ns(rate, gaps)
    bucket = Bucket(rate, START_NS)
    assert ask_all(rate, times) == [bucket.ask(now_ns) for now_ns in times]


@given(RATES.filter(lambda rate: rate.burst <= 20), st.integers(0, 1_000_000))
def test_the_wait_is_exact(rate: Rate, later_millionths: int) -> None:
    """A retry after exactly the wait is granted, and one a nanosecond earlier is refused."""
    whole_at_ns = exhausted(rate)
    now_ns = START_NS + (rate.step_ns - 1) * later_millionths // 1_000_000
    _, refused = take_ticket(whole_at_ns, now_ns, rate)
    assert not refused.is_granted
    assert 1 <= refused.wait_ns <= rate.step_ns
    assert take_ticket(whole_at_ns, now_ns + refused.wait_ns, rate)[1].is_granted
    assert not take_ticket(whole_at_ns, now_ns + refused.wait_ns - 1, rate)[1].is_granted


@given(RATES.filter(lambda rate: rate.burst <= 20), st.integers(0, 1_000_000))
def test_the_wait_in_milliseconds_is_long_enough(rate: Rate, later_millionths: int) -> None:
    """A retry after either header of a refusal is granted, and neither is longer than rounding up requires."""
    whole_at_ns = exhausted(rate)
    now_ns = START_NS + (rate.step_ns - 1) * later_millionths // 1_000_000
    _, refused = take_ticket(whole_at_ns, now_ns, rate)
    headers = dict(RateLimited("", refused.wait_s).headers)
    wait_ms, wait_s = int(headers[b"retry-after-ms"]), int(headers[b"retry-after"])
    assert take_ticket(whole_at_ns, now_ns + wait_ms * NS_PER_MS, rate)[1].is_granted
    assert take_ticket(whole_at_ns, now_ns + wait_s * NS_PER_S, rate)[1].is_granted
    assert wait_ms * NS_PER_MS < refused.wait_ns + 2 * NS_PER_MS
    assert wait_s * 1000 < wait_ms + 1000


@pytest.mark.parametrize("before", [Rate(0.01, 1), Rate(1.0, 100), Rate(5.0, 20)])
@pytest.mark.parametrize("after", [Rate(100.0, 1), Rate(1000.0, 10), Rate(10_000.0, 10_000)])
def test_a_higher_rate_counts_at_once(before: Rate, after: Rate) -> None:
    """A key that used up a low rate and gets a higher one waits at most one step of the higher rate."""
    _, ticket = take_ticket(exhausted(before), START_NS, after)
    assert ticket.wait_ns <= after.step_ns


@pytest.mark.parametrize("before", [Rate(100.0, 50), Rate(10_000.0, 10_000)])
@pytest.mark.parametrize("after", [Rate(0.01, 1), Rate(1.0, 2)])
def test_a_lower_rate_counts_at_once(before: Rate, after: Rate) -> None:
    """A key that had a high rate and gets a lower one has at most the lower burst from then on."""
    whole_at_ns, _ = take_ticket(0, START_NS, before)
    granted = 0
    for _ in range(10):
        whole_at_ns, ticket = take_ticket(whole_at_ns, START_NS, after)
        granted += ticket.is_granted
    assert granted <= after.burst
    assert not ticket.is_granted
