"""The adaptive concurrency limit of a route: what lowers it, what raises it again, and its bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.routing.ceiling import (
    FEW,
    RECENT_WEIGHT,
    RECOVER_S,
    SLOW_FACTOR,
    SLOW_S_MIN,
    STEP_DOWN,
    STEP_DOWN_SLOW,
    STEP_UP,
    Ceiling,
    FirstTokenTimes,
)

MOST = 100


def times_of(usual_s: float, recent_s: float) -> FirstTokenTimes:
    """A route that usually takes one time and recently, under load, took another."""
    times = FirstTokenTimes()
    times.note(usual_s)
    times.note(usual_s + (recent_s - usual_s) / RECENT_WEIGHT, is_loaded=True)
    return times


def test_it_falls_one_step_for_each_round_trip() -> None:
    """A request sent before the last step down does not lower it again; one sent after it does."""
    ceiling = Ceiling(MOST)
    for _ in range(50):
        ceiling.lower(50, started_s=9.0, now_s=10.0)
    assert ceiling.limit(10.0) == int(50 * STEP_DOWN)
    ceiling.lower(30, started_s=10.1, now_s=11.0)
    assert ceiling.limit(11.0) == int(30 * STEP_DOWN)


def test_a_few_requests_do_not_lower_it() -> None:
    """A route that refuses fewer than FEW requests has another reason than their number."""
    ceiling = Ceiling(MOST)
    ceiling.lower(FEW - 1, started_s=1.0, now_s=2.0)
    assert ceiling.limit(2.0) == MOST
    ceiling.lower(FEW, started_s=1.0, now_s=2.0)
    assert ceiling.limit(2.0) == int(FEW * STEP_DOWN)


def test_answers_raise_it_while_it_is_in_demand() -> None:
    """Each answer raises it by STEP_UP up to the maximum, if at least half of it is used."""
    ceiling = Ceiling(MOST)
    ceiling.lower(50, started_s=1.0, now_s=2.0)
    for _ in range(100):
        ceiling.raise_by_answer(in_flight=17)
    assert ceiling.limit(3.0) == 35
    for _ in range(50):
        ceiling.raise_by_answer(in_flight=35)
    assert ceiling.limit(3.0) == pytest.approx(35 + 50 * STEP_UP, abs=1)
    for _ in range(10_000):
        ceiling.raise_by_answer(in_flight=MOST)
    assert ceiling.limit(3.0) == MOST


def test_it_recovers_after_a_minute_without_a_sign_of_overload() -> None:
    """RECOVER_S after the last step down it is at its maximum, even without requests in between."""
    ceiling = Ceiling(MOST)
    ceiling.lower(50, started_s=1.0, now_s=2.0)
    assert ceiling.limit(2.0 + RECOVER_S) == 35
    assert ceiling.limit(2.1 + RECOVER_S) == MOST


def test_a_reset_returns_it_to_its_maximum_at_once() -> None:
    """After a reset the ceiling is as new: also a request sent before the last step down can lower it."""
    ceiling = Ceiling(MOST)
    ceiling.lower(50, started_s=1.0, now_s=2.0)
    ceiling.reset()
    assert ceiling.limit(2.0) == MOST
    ceiling.lower(50, started_s=1.0, now_s=2.0)
    assert ceiling.limit(2.0) == 35


def test_a_slow_route_is_lowered_one_step_at_a_time() -> None:
    """After a step there is time for it to take effect, and slowness never lowers the ceiling below FEW."""
    ceiling, times = Ceiling(MOST), times_of(usual_s=0.33, recent_s=1.0)
    for now_s in (1.0, 1.1, 1.2):
        ceiling.lower_if_due(times, now_s)
    assert ceiling.limit(1.2) == int(MOST * STEP_DOWN_SLOW)
    for number in range(100):
        ceiling.lower_if_due(times, 3.0 + 2 * number)
    assert ceiling.limit(203.0) == FEW


@given(
    most=st.integers(1, 300),
    steps=st.lists(st.tuples(st.sampled_from(["overloaded", "slow", "answer"]), st.integers(1, 300))),
)
def test_it_stays_between_one_and_its_maximum(most: int, steps: list[tuple[str, int]]) -> None:
    """After any sequence of events a route is given at least one request and at most its maximum."""
    ceiling = Ceiling(most)
    for number, (step, in_flight) in enumerate(steps):
        now_s = float(number)
        if step == "overloaded":
            ceiling.lower(min(in_flight, ceiling.limit(now_s)), now_s - 0.5, now_s)
        elif step == "slow":
            ceiling.lower_if_due(times_of(usual_s=0.01, recent_s=0.5), now_s)
        else:
            ceiling.raise_by_answer(in_flight)
        assert 1 <= ceiling.limit(now_s) <= most


def test_a_route_is_slow_while_recent_answers_take_far_longer_than_usual() -> None:
    """It is slow after 30 answers at six times the usual time, and no longer slow after 50 at the usual time."""
    times = FirstTokenTimes()
    for _ in range(500):
        times.note(0.2)
    assert not times.is_slow
    for took_s, count, is_slow in ((0.2 * SLOW_FACTOR * 2, 30, True), (0.2, 50, False)):
        for _ in range(count):
            times.note(took_s)
        assert times.is_slow is is_slow


def test_a_short_delay_is_not_slow() -> None:
    """A delay of less than SLOW_S_MIN is noise, however many times longer than usual it is."""
    times = FirstTokenTimes()
    for _ in range(500):
        times.note(0.001)
    for _ in range(100):
        times.note(SLOW_S_MIN)
    assert not times.is_slow


@pytest.mark.parametrize("is_loaded", [True, False])
def test_slowness_becomes_usual_only_without_load(is_loaded: bool) -> None:
    """A route that is always slow without load is not called slow; one that is slow under load stays slow."""
    times = FirstTokenTimes()
    times.note(0.2)
    for _ in range(2000):
        times.note(1.2, is_loaded=is_loaded)
    assert times.is_slow is is_loaded


def test_a_fast_answer_counts_also_under_load() -> None:
    """An answer faster than usual lowers the usual time, so a slow first answer does not stay the measure."""
    times = FirstTokenTimes()
    times.note(10.0)
    for _ in range(2000):
        times.note(0.5, is_loaded=True)
    for _ in range(30):
        times.note(5.0, is_loaded=True)
    assert times.is_slow
