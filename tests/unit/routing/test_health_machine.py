"""The health of a route under any sequence of events."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from cadenza.core.breaker import OPEN_S_MAX
from cadenza.core.faults import FaultKind
from cadenza.core.shares import WANTS_S
from cadenza.routing.health import Attempt, RouteHealth
from cadenza.upstreams.base import Fault
from cadenza.upstreams.errors import RETRY_AFTER_S_MAX

MOST = 20
KEYS = ("key_a", "key_b", "key_c")
FAULTS = [
    *(Fault(kind) for kind in FaultKind),
    Fault(FaultKind.BUSY, 429, 3.0),
    Fault(FaultKind.BUSY, 429, RETRY_AFTER_S_MAX),
    Fault(FaultKind.FAILED, 503),
    Fault(FaultKind.FAILED, 529, 1.0),
]


class HealthMachine(RuleBasedStateMachine):
    """Begins, answers and ends requests in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.health = RouteHealth(MOST, lambda: self.now_s)
        self.open: list[tuple[Attempt, bool]] = []  # and whether it has answered

    @rule(key=st.sampled_from(KEYS), is_last_resort=st.booleans())
    def begin(self, key: str, is_last_resort: bool) -> None:
        was_open, was_full = self.health.is_open, self.health.in_flight >= self.health.limit
        attempt = self.health.begin(key, is_last_resort=is_last_resort)
        if attempt:
            assert not was_full
            assert is_last_resort or not was_open
            self.open.append((attempt, False))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), is_stream=st.booleans())
    def answer(self, data: st.DataObject, is_stream: bool) -> None:
        place = data.draw(st.integers(0, len(self.open) - 1))
        attempt, has_answered = self.open[place]
        if not has_answered:
            attempt.record_response(is_stream=is_stream)
            self.open[place] = (attempt, True)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), ending=st.sampled_from([None, *FAULTS]))
    def end(self, data: st.DataObject, ending: Fault | None) -> None:
        attempt, has_answered = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        if ending:
            attempt.record_fault(ending)
        elif has_answered:
            attempt.record_finish()
        attempt.end()

    @rule(passed_s=st.sampled_from([0.0, 0.01, 0.5, 1.0, 5.0, 31.0, 61.0]))
    def wait(self, passed_s: float) -> None:
        self.now_s += passed_s

    @rule()
    def reset(self) -> None:
        self.health.reset(MOST)
        assert not self.health.is_open

    @invariant()
    def is_within_bounds(self) -> None:
        assert 1 <= self.health.limit <= MOST
        assert self.health.in_flight == len(self.open)
        assert 0 <= self.health.open_s <= max(OPEN_S_MAX, RETRY_AFTER_S_MAX)

    def teardown(self) -> None:
        """When all requests have ended and every rest is over, the route takes requests again."""
        for attempt, _ in self.open:
            attempt.end()
        self.now_s += max(OPEN_S_MAX, RETRY_AFTER_S_MAX, WANTS_S)
        assert self.health.in_flight == 0
        assert self.health.begin(KEYS[0])


def test_health_stays_within_its_bounds_in_any_order_of_events() -> None:
    """Limit, places and rests keep their bounds, and no order of events makes a route unusable forever."""
    run_state_machine_as_test(HealthMachine, settings=settings(stateful_step_count=40))
