"""The adaptive ceiling of a route: what lowers it, what raises it again, and the bounds that it never leaves."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cadenza.core.shares import WANTS_S
from cadenza.routing.health import (
    FEW,
    RECOVER_S,
    REST_S_MAX,
    SLOW_FACTOR,
    SLOW_S_MIN,
    STEP_DOWN,
    STEP_DOWN_SLOW,
    STEP_DOWN_SLOWEST,
    STEP_UP,
    Attempt,
    Ceiling,
    Pace,
    RouteHealth,
)
from cadenza.upstreams.base import RETRY_AFTER_S_MAX, Fault, FaultKind

MOST = 100
KEYS = ("key_a", "key_b", "key_c")
FAULTS = [
    *(Fault(kind) for kind in FaultKind),
    Fault(FaultKind.BUSY, 429, 3.0),
    Fault(FaultKind.BUSY, 429, RETRY_AFTER_S_MAX),
    Fault(FaultKind.FAILED, 503),
    Fault(FaultKind.FAILED, 529, 1.0),
]


def test_it_begins_at_the_top() -> None:
    """Without a sign of overload a route is given all there is."""
    assert Ceiling(MOST).limit(0.0) == MOST


def test_one_step_for_each_round_trip() -> None:
    """What was asked before the last step down is no news; what was asked after it is."""
    ceiling = Ceiling(MOST)
    for _ in range(50):
        ceiling.lower(50, started_s=9.0, now_s=10.0)
    assert ceiling.limit(10.0) == int(50 * STEP_DOWN)
    ceiling.lower(30, started_s=10.1, now_s=11.0)
    assert ceiling.limit(11.0) == int(30 * STEP_DOWN)


def test_few_at_once_are_not_too_many() -> None:
    """A route that says no to a handful has another reason: a rate limit does not lower the ceiling to nothing."""
    ceiling = Ceiling(MOST)
    ceiling.lower(FEW - 1, started_s=1.0, now_s=2.0)
    assert ceiling.limit(2.0) == MOST
    ceiling.lower(FEW, started_s=1.0, now_s=2.0)
    assert ceiling.limit(2.0) == int(FEW * STEP_DOWN)


def test_it_grows_by_answers_while_it_is_in_demand() -> None:
    """Answers raise it step by step where at least half of it is used, and not where nobody needs more."""
    ceiling = Ceiling(MOST)
    ceiling.lower(50, started_s=1.0, now_s=2.0)
    for _ in range(100):
        ceiling.answered(in_flight=17)
    assert ceiling.limit(3.0) == 35
    for _ in range(50):
        ceiling.answered(in_flight=35)
    assert ceiling.limit(3.0) == pytest.approx(35 + 50 * STEP_UP, abs=1)
    for _ in range(10_000):
        ceiling.answered(in_flight=MOST)
    assert ceiling.limit(3.0) == MOST


def test_it_recovers_after_a_while_without_a_sign() -> None:
    """RECOVER_S after the last step down the ceiling is forgotten, though nobody asked in between."""
    ceiling = Ceiling(MOST)
    ceiling.lower(50, started_s=1.0, now_s=2.0)
    assert ceiling.limit(2.0 + RECOVER_S) == 35
    assert ceiling.limit(2.1 + RECOVER_S) == MOST


def test_slowness_lowers_it_gently() -> None:
    """A slow route loses a small step and is then given time to show it; it is never lowered below a few."""
    ceiling, pace = Ceiling(MOST), paced(usual_s=0.33, recent_s=1.0)
    for now_s in (1.0, 1.1, 1.2):
        ceiling.lower_to_pace(pace, now_s)
    assert ceiling.limit(1.2) == int(MOST * STEP_DOWN_SLOW)
    for number in range(100):
        ceiling.lower_to_pace(pace, 3.0 + 2 * number)
    assert ceiling.limit(203.0) == FEW


@pytest.mark.parametrize(("recent_s", "step"), [(3.1, STEP_DOWN_SLOW), (5.0, 0.6), (100.0, STEP_DOWN_SLOWEST)])
def test_the_slower_the_larger_the_step(recent_s: float, step: float) -> None:
    """What is a little too slow loses little, what is far too slow as much as half."""
    assert paced(usual_s=1.0, recent_s=recent_s).step == pytest.approx(step)


def paced(usual_s: float, recent_s: float) -> Pace:
    pace = Pace()
    pace.note(usual_s)
    pace.recent_s = recent_s
    return pace


def test_pace_tells_what_is_slow() -> None:
    """A route is slow when it lately takes far longer than it usually does, and not before."""
    pace = Pace()
    for _ in range(500):
        pace.note(0.2)
    assert not pace.is_slow
    for took_s, times, is_slow in ((0.2 * SLOW_FACTOR * 2, 30, True), (0.2, 50, False)):
        for _ in range(times):
            pace.note(took_s)
        assert pace.is_slow is is_slow


def test_a_short_delay_is_no_sign() -> None:
    """Many times longer than next to nothing is still next to nothing."""
    pace = Pace()
    for _ in range(500):
        pace.note(0.001)
    for _ in range(100):
        pace.note(SLOW_S_MIN)
    assert not pace.is_slow


class Queue:
    """A route that works on a few requests at once and lets the others wait, and a crowd that asks all it may."""

    def __init__(self, at_once: int) -> None:
        self.now_s = 0.0
        self.health = RouteHealth(MOST, lambda: self.now_s)
        self._at_once = at_once

    def round_trip(self, asks: int) -> None:
        begun = list(filter(None, (self.health.begin("key_a") for _ in range(asks))))
        self.now_s += 0.1 * max(1.0, len(begun) / self._at_once)
        for attempt in begun:
            attempt.note_answer(is_stream=True)
        for attempt in begun:
            attempt.end()


def test_a_route_that_becomes_slow_under_load_is_given_less() -> None:
    """Where first tokens take far longer than usual and the route is full, it is given less at once."""
    queue = Queue(at_once=10)
    for _ in range(100):
        queue.round_trip(asks=1)
    assert queue.health.limit == MOST
    queue.round_trip(asks=MOST)
    assert FEW <= queue.health.limit < MOST


def test_a_route_that_stays_slow_under_load_stays_lowered() -> None:
    """Slowness does not become the usual because it lasts: a crowd never brings the ceiling back to the top."""
    queue = Queue(at_once=10)
    for _ in range(100):
        queue.round_trip(asks=1)
    for _ in range(60):
        queue.round_trip(asks=MOST)
    assert FEW <= queue.health.limit <= MOST / 2


@pytest.mark.parametrize(
    ("fault", "is_lowered"),
    [
        (Fault(FaultKind.BUSY, 429), True),
        (Fault(FaultKind.TIMED_OUT), True),
        (Fault(FaultKind.FAILED, 503), True),
        (Fault(FaultKind.FAILED, 529), True),
        (Fault(FaultKind.FAILED, 500), False),
        (Fault(FaultKind.UNREACHABLE), False),
        (Fault(FaultKind.MALFORMED), False),
        (Fault(FaultKind.REFUSED, 400), False),
    ],
    ids=str,
)
def test_which_faults_lower_it(fault: Fault, is_lowered: bool) -> None:
    """Being busy, silent or overloaded is a sign of too much; being broken is not."""
    now_s = 10.0
    health = RouteHealth(MOST, lambda: now_s)
    attempts = [health.begin("key_a") for _ in range(40)]
    now_s += 1
    assert attempts[0]
    attempts[0].note_fault(fault)
    assert health.limit == (int(40 * STEP_DOWN) if is_lowered else MOST)


@given(most=st.integers(1, 300), steps=st.lists(st.tuples(st.sampled_from("lga"), st.integers(1, 300))))
def test_the_bounds_of_a_ceiling(most: int, steps: list[tuple[str, int]]) -> None:
    """Whatever comes, however often: never below one place, never above the most."""
    ceiling = Ceiling(most)
    for number, (step, in_flight) in enumerate(steps):
        now_s = float(number)
        if step == "l":
            ceiling.lower(min(in_flight, ceiling.limit(now_s)), now_s - 0.5, now_s)
        elif step == "g":
            ceiling.lower_to_pace(paced(usual_s=0.01, recent_s=0.5), now_s)
        else:
            ceiling.answered(in_flight)
        assert 1 <= ceiling.limit(now_s) <= most


class Walk(RuleBasedStateMachine):
    """Any sequence of what can happen to a route."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.most = 20
        self.health = RouteHealth(self.most, lambda: self.now_s)
        self.open: list[tuple[Attempt, bool]] = []  # and whether it has answered

    @rule(key=st.sampled_from(KEYS), is_last_resort=st.booleans())
    def begin(self, key: str, is_last_resort: bool) -> None:
        was_resting, was_full = self.health.is_resting, self.health.in_flight >= self.health.limit
        attempt = self.health.begin(key, is_last_resort=is_last_resort)
        if attempt:
            assert not was_full
            assert is_last_resort or not was_resting
            self.open.append((attempt, False))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), is_stream=st.booleans())
    def answer(self, data: st.DataObject, is_stream: bool) -> None:
        place = data.draw(st.integers(0, len(self.open) - 1))
        attempt, has_answered = self.open[place]
        if not has_answered:
            attempt.note_answer(is_stream=is_stream)
            self.open[place] = (attempt, True)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), ending=st.sampled_from([None, *FAULTS]))
    def end(self, data: st.DataObject, ending: Fault | None) -> None:
        attempt, has_answered = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        if ending:
            attempt.note_fault(ending)
        elif has_answered:
            attempt.note_finish()
        attempt.end()

    @rule(passed_s=st.sampled_from([0.0, 0.01, 0.5, 1.0, 5.0, 31.0, 61.0]))
    def wait(self, passed_s: float) -> None:
        self.now_s += passed_s

    @rule()
    def forget(self) -> None:
        self.health.forget()
        assert not self.health.is_resting

    @invariant()
    def is_within_bounds(self) -> None:
        assert 1 <= self.health.limit <= self.most
        assert self.health.in_flight == len(self.open)
        assert 0 <= self.health.rest_s <= max(REST_S_MAX, RETRY_AFTER_S_MAX)

    def teardown(self) -> None:
        """Whatever happened: when all has ended and time has passed, the route takes requests again."""
        for attempt, _ in self.open:
            attempt.end()
        self.now_s += max(REST_S_MAX, RETRY_AFTER_S_MAX, WANTS_S)
        assert self.health.in_flight == 0
        assert self.health.begin(KEYS[0])


Walk.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestWalk = Walk.TestCase
