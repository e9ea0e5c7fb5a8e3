"""Rates against an exact bucket of tokens: what is granted, what is left, and the true wait of who is refused."""

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
GAPS = st.lists(  # between requests: quarters of the time of one request, and a nanosecond more or less
    st.tuples(st.sampled_from([0, 0, 0, 1, 2, 3, 4, 4, 5, 7, 8, 40, 4_000]), st.integers(-1, 1)),
    min_size=1,
    max_size=60,
)
Gaps = list[tuple[int, int]]


class Bucket:
    """The reference: a bucket that a token drips into every so often, and that every request takes one from."""

    def __init__(self, rate: Rate, now_ns: int) -> None:
        self.drip_ns = Fraction(rate.step_ns)
        self.size = rate.burst
        self.tokens = Fraction(rate.burst)
        self.now_ns = now_ns

    def ask(self, now_ns: int) -> Ticket:
        self.tokens = min(self.tokens + (now_ns - self.now_ns) / self.drip_ns, Fraction(self.size))
        self.now_ns = now_ns
        is_granted = self.tokens >= 1
        if is_granted:
            self.tokens -= 1
        return Ticket(
            is_granted=is_granted,
            limit=self.size,
            remaining=math.floor(self.tokens),
            reset_ns=math.ceil((self.size - self.tokens) * self.drip_ns),
            wait_ns=0 if is_granted else math.ceil((1 - self.tokens) * self.drip_ns),
        )


def moments_ns(rate: Rate, gaps: Gaps) -> list[int]:
    return list(accumulate((max(0, quarters * rate.step_ns // 4 + more) for quarters, more in gaps), initial=START_NS))


def ask_all(rate: Rate, moments: list[int]) -> list[Ticket]:
    tickets, whole_at_ns = [], 0
    for now_ns in moments:
        whole_at_ns, ticket = take_ticket(whole_at_ns, now_ns, rate)
        tickets.append(ticket)
    return tickets


def exhausted(rate: Rate) -> int:
    """When the burst is whole again of who has just used all of it."""
    whole_at_ns, granted = 0, True
    while granted:
        whole_at_ns, ticket = take_ticket(whole_at_ns, START_NS, rate)
        granted = ticket.is_granted
    return whole_at_ns


@given(RATES, GAPS)
def test_tickets_are_those_of_the_bucket(rate: Rate, gaps: Gaps) -> None:
    """Whatever the rate and whenever the requests come, every ticket is exactly what the reference says."""
    moments = moments_ns(rate, gaps)
    bucket = Bucket(rate, START_NS)
    assert ask_all(rate, moments) == [bucket.ask(now_ns) for now_ns in moments]


@given(RATES.filter(lambda rate: rate.burst <= 20), GAPS)
def test_no_window_has_more_than_its_due(rate: Rate, gaps: Gaps) -> None:
    """In any span of time no more is granted than the burst and what the rate adds in that span."""
    moments = moments_ns(rate, gaps)
    tickets = ask_all(rate, moments)
    granted = [now_ns for now_ns, ticket in zip(moments, tickets, strict=True) if ticket.is_granted]
    for first, begin_ns in enumerate(granted):
        for last in range(first, len(granted)):
            assert last - first + 1 <= rate.burst + (granted[last] - begin_ns) // rate.step_ns


@given(st.floats(0.001, 1_000_000.0))
def test_time_of_one_request_is_that_of_the_rate(per_s: float) -> None:
    """It is the exact time to half a nanosecond."""
    assert abs(Rate(per_s, 1).step_ns - NS_PER_S / Fraction(per_s)) <= Fraction(1, 2)


@pytest.mark.parametrize("per_s", [1e9, 2e9, 1e300])
def test_huge_rates_still_take_time(per_s: float) -> None:
    """However high the rate, no moment has more than the burst."""
    tickets = ask_all(Rate(per_s, 3), [START_NS] * 5)
    assert [ticket.is_granted for ticket in tickets] == [True, True, True, False, False]


@given(RATES, GAPS, st.integers(1, 100))
def test_refused_request_takes_nothing(rate: Rate, gaps: Gaps, times: int) -> None:
    """Who is refused and insists is told the same again, and stands as who did not insist."""
    whole_at_ns = 0
    for now_ns in moments_ns(rate, gaps):
        whole_at_ns, ticket = take_ticket(whole_at_ns, now_ns, rate)
        if not ticket.is_granted:
            assert [take_ticket(whole_at_ns, now_ns, rate) for _ in range(times)] == [(whole_at_ns, ticket)] * times


@given(RATES.filter(lambda rate: rate.burst <= 20), st.integers(0, 1_000_000))
def test_the_wait_is_the_true_one(rate: Rate, later_millionths: int) -> None:
    """Who waits just as long as it is told is granted, and a nanosecond earlier is refused."""
    whole_at_ns = exhausted(rate)
    now_ns = START_NS + (rate.step_ns - 1) * later_millionths // 1_000_000
    _, refused = take_ticket(whole_at_ns, now_ns, rate)
    assert not refused.is_granted
    assert 1 <= refused.wait_ns <= rate.step_ns
    assert take_ticket(whole_at_ns, now_ns + refused.wait_ns, rate)[1].is_granted
    assert not take_ticket(whole_at_ns, now_ns + refused.wait_ns - 1, rate)[1].is_granted


@given(RATES.filter(lambda rate: rate.burst <= 20), st.integers(0, 1_000_000))
def test_the_wait_in_milliseconds_is_long_enough(rate: Rate, later_millionths: int) -> None:
    """Both headers of a refusal name a wait after which the request is granted, and no more than must be rounded."""
    whole_at_ns = exhausted(rate)
    now_ns = START_NS + (rate.step_ns - 1) * later_millionths // 1_000_000
    _, refused = take_ticket(whole_at_ns, now_ns, rate)
    headers = dict(RateLimited("", refused.wait_s).headers)
    wait_ms, wait_s = int(headers[b"retry-after-ms"]), int(headers[b"retry-after"])
    assert take_ticket(whole_at_ns, now_ns + wait_ms * NS_PER_MS, rate)[1].is_granted
    assert take_ticket(whole_at_ns, now_ns + wait_s * NS_PER_S, rate)[1].is_granted
    assert wait_ms * NS_PER_MS < refused.wait_ns + 2 * NS_PER_MS
    assert wait_s * 1000 < wait_ms + 1000


@given(RATES, GAPS)
def test_reset_is_when_the_burst_is_whole(rate: Rate, gaps: Gaps) -> None:
    """Who rests for as long as the reset says has the whole burst again, and a nanosecond earlier has not."""
    whole_at_ns = 0
    for now_ns in moments_ns(rate, gaps):
        whole_at_ns, ticket = take_ticket(whole_at_ns, now_ns, rate)
    assert take_ticket(whole_at_ns, now_ns + ticket.reset_ns, rate)[1].remaining == rate.burst - 1
    assert ticket.reset_ns >= 1
    if rate.burst > 1:
        assert take_ticket(whole_at_ns, now_ns + ticket.reset_ns - 1, rate)[1].remaining == rate.burst - 2


@given(RATES.filter(lambda rate: rate.burst <= 20))
def test_clock_that_stands_still_grants_the_burst_and_no_more(rate: Rate) -> None:
    """In one moment the burst counts down to nothing, and all that follows is refused."""
    tickets = ask_all(rate, [START_NS] * (rate.burst + 3))
    assert [ticket.remaining for ticket in tickets] == [*reversed(range(rate.burst)), 0, 0, 0]
    assert [ticket.is_granted for ticket in tickets] == [True] * rate.burst + [False] * 3


@pytest.mark.parametrize("before", [Rate(0.01, 1), Rate(1.0, 100), Rate(5.0, 20)])
@pytest.mark.parametrize("after", [Rate(100.0, 1), Rate(1000.0, 10), Rate(10_000.0, 10_000)])
def test_a_higher_rate_counts_at_once(before: Rate, after: Rate) -> None:
    """Who used up a low rate and is given a higher one waits at most for one request of the higher one."""
    _, ticket = take_ticket(exhausted(before), START_NS, after)
    assert ticket.wait_ns <= after.step_ns


@pytest.mark.parametrize("before", [Rate(100.0, 50), Rate(10_000.0, 10_000)])
@pytest.mark.parametrize("after", [Rate(0.01, 1), Rate(1.0, 2)])
def test_a_lower_rate_counts_at_once(before: Rate, after: Rate) -> None:
    """Who had a high rate and is given a lower one has at most the lower burst from then on."""
    whole_at_ns, _ = take_ticket(0, START_NS, before)
    granted = 0
    for _ in range(10):
        whole_at_ns, ticket = take_ticket(whole_at_ns, START_NS, after)
        granted += ticket.is_granted
    assert granted <= after.burst
    assert not ticket.is_granted
