"""The health of a route: which faults make it rest or lower its ceiling, trials, and the last resort."""

import pytest

from cadenza.core.breaker import FAULTS_TO_OPEN, OPEN_S_MAX, OPEN_S_MIN
from cadenza.core.faults import FaultKind
from cadenza.routing.ceiling import FEW, STEP_DOWN
from cadenza.routing.health import FAILING_FAULTS, FAILING_S, Attempt, RouteHealth
from cadenza.upstreams.base import Fault

KEY = "key_a"
MOST = 100
FAILED = Fault(FaultKind.FAILED, 500)
FAILURES = [kind for kind in FaultKind if kind not in {FaultKind.BUSY, FaultKind.QUOTA, FaultKind.INVALID}]
UNPAID = Fault(FaultKind.QUOTA, 429)


class TimedRoute:
    """The health of one route, and a clock that only the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.opened_for_s: list[float] = []  # as they were reported
        self.health = RouteHealth(MOST, lambda: self.now_s, self.opened_for_s.append)

    def begin(self, *, is_last_resort: bool = False) -> Attempt:
        attempt = self.health.begin(KEY, is_last_resort=is_last_resort)
        assert attempt is not None
        return attempt

    @property
    def takes_one(self) -> bool:
        """Whether a request would get a place; it gives the place back at once."""
        attempt = self.health.begin(KEY)
        if attempt:
            attempt.end()
        return attempt is not None

    def fail(self, fault: Fault = FAILED, times: int = 1) -> None:
        """Requests, one after the other, that fail before the first token."""
        for _ in range(times):
            attempt = self.begin()
            self.now_s += 0.001
            attempt.record_fault(fault)
            attempt.end()

    def answer(self) -> None:
        """A request that is answered to its end."""
        attempt = self.begin()
        attempt.record_response(is_stream=True)
        attempt.record_finish()
        attempt.end()

    def break_off(self, times: int = 1) -> None:
        """Requests, one after the other, whose replies begin and break off."""
        for _ in range(times):
            attempt = self.begin()
            attempt.record_response(is_stream=True)
            attempt.record_fault(Fault(FaultKind.TRUNCATED))
            attempt.end()

    def rest(self) -> None:
        """Fail until the route rests, and wait until it may be tried."""
        self.fail(times=FAULTS_TO_OPEN)
        assert self.health.is_down
        self.now_s += self.health.open_s


@pytest.mark.parametrize("kind", FAILURES)
def test_faults_in_a_row_make_a_route_rest(kind: FaultKind) -> None:
    """The fifth fault in a row, of any kind that is the route's own, begins a rest of OPEN_S_MIN."""
    route = TimedRoute()
    route.fail(Fault(kind), FAULTS_TO_OPEN - 1)
    assert not route.health.is_open
    route.fail(Fault(kind))
    assert route.health.is_down
    assert route.health.open_s == pytest.approx(OPEN_S_MIN)
    assert not route.takes_one
    route.now_s += OPEN_S_MIN
    assert route.takes_one


def test_a_refusal_changes_nothing() -> None:
    """Requests that the upstream rejects as invalid count neither for nor against the route."""
    route = TimedRoute()
    route.fail(times=FAULTS_TO_OPEN - 1)
    route.fail(Fault(FaultKind.INVALID, 400), 100)
    assert not route.health.is_open
    route.fail()
    assert route.health.is_down


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
        (Fault(FaultKind.INVALID, 400), False),
    ],
    ids=str,
)
def test_which_faults_lower_the_ceiling(fault: Fault, is_lowered: bool) -> None:
    """A route that is busy, times out or is overloaded has too many requests; one that is broken does not."""
    route = TimedRoute()
    attempts = [route.begin() for _ in range(40)]
    route.now_s += 1
    attempts[0].record_fault(fault)
    assert route.health.limit == (int(40 * STEP_DOWN) if is_lowered else MOST)


def test_a_trial_that_finds_no_place_does_not_block_the_next() -> None:
    """A trial that is refused because the route is full is not counted as running."""
    route = TimedRoute()
    places = [route.begin() for _ in range(MOST)]
    route.now_s += 1
    for place in places[:FAULTS_TO_OPEN]:
        place.record_fault(FAILED)
    route.now_s += OPEN_S_MIN
    assert route.health.begin(KEY) is None
    places[0].end()
    assert route.begin().is_trial


def test_a_resting_route_takes_one_request_at_a_time_as_the_last_resort() -> None:
    """A request that has no other route may try it during its rest; an answer ends the rest."""
    route = TimedRoute()
    route.fail(times=FAULTS_TO_OPEN)
    attempt = route.begin(is_last_resort=True)
    assert route.health.begin(KEY, is_last_resort=True) is None
    attempt.record_response(is_stream=False)
    assert not route.health.is_open
    assert route.takes_one


def test_each_rest_is_reported_with_its_length() -> None:
    """The callback is told once for each rest, whether faults or a Retry-After began it."""
    route = TimedRoute()
    route.rest()
    route.fail()
    route.now_s += route.health.open_s
    route.fail(Fault(FaultKind.BUSY, 429, 7.0))
    assert route.opened_for_s == pytest.approx([OPEN_S_MIN, 2 * OPEN_S_MIN, 7.0])


def test_a_reset_makes_a_route_usable_and_keeps_requests_in_flight_counted() -> None:
    """After a reset a resting route takes requests at once, without a trial, up to its new ceiling."""
    route = TimedRoute()
    route.begin()
    route.fail(times=FAULTS_TO_OPEN)
    route.health.reset(7)
    assert not route.health.is_open
    assert (route.health.in_flight, route.health.limit) == (1, 7)
    assert not route.begin().is_trial


class QueueingRoute(TimedRoute):
    """A route that works on a few requests at once and lets the others wait."""

    def __init__(self, at_once: int) -> None:
        super().__init__()
        self._at_once = at_once

    def serve(self, requests: int) -> None:
        """Send as many of these requests as the route may have, and answer them all."""
        begun = list(filter(None, (self.health.begin(KEY) for _ in range(requests))))
        self.now_s += 0.1 * max(1.0, len(begun) / self._at_once)
        for attempt in begun:
            attempt.record_response(is_stream=True)
        for attempt in begun:
            attempt.end()


def test_a_route_that_becomes_slow_under_load_is_given_less() -> None:
    """When first tokens take far longer than usual and the route is full, its ceiling falls."""
    route = QueueingRoute(at_once=10)
    for _ in range(100):
        route.serve(requests=1)
    assert route.health.limit == MOST
    route.serve(requests=MOST)
    assert FEW <= route.health.limit < MOST


def test_a_route_that_stays_slow_under_load_stays_lowered() -> None:
    """Slowness does not become usual because it lasts: under constant load the ceiling stays low."""
    route = QueueingRoute(at_once=10)
    for _ in range(100):
        route.serve(requests=1)
    for _ in range(60):
        route.serve(requests=MOST)
    assert FEW <= route.health.limit <= MOST / 2


def test_a_route_fails_after_three_faults_without_an_answer() -> None:
    """Two faults may be chance; three in a row mean that the route fails, until a request is answered."""
    route = TimedRoute()
    route.fail(times=FAILING_FAULTS - 1)
    assert not route.health.is_failing
    route.fail()
    assert (route.health.is_failing, route.health.is_open) == (True, False)
    route.answer()
    assert not route.health.is_failing


def test_a_rejected_key_fails_at_once() -> None:
    """One 401 is enough: the next request would get it too."""
    route = TimedRoute()
    route.fail(Fault(FaultKind.UNAUTHORIZED, 401))
    assert route.health.is_failing


def test_an_unpaid_bill_opens_the_circuit_at_once() -> None:
    """One fault is enough, for the longest time, and those sent before it do not open it again; the limit stays."""
    route = TimedRoute()
    together = [route.begin() for _ in range(40)]
    route.now_s += 1
    together[0].record_fault(UNPAID)
    assert route.health.is_down
    for attempt in together:
        attempt.record_fault(UNPAID)
        attempt.end()
    assert (route.health.is_down, route.health.is_failing, route.health.limit) == (True, True, MOST)
    assert route.opened_for_s == [OPEN_S_MAX]
    route.now_s += OPEN_S_MAX
    route.fail(UNPAID)
    assert route.opened_for_s == [OPEN_S_MAX, OPEN_S_MAX]
    route.now_s += OPEN_S_MAX
    route.answer()
    assert (route.health.is_open, route.health.is_failing) == (False, False)


@pytest.mark.parametrize("kind", [FaultKind.INVALID, FaultKind.BUSY])
def test_refused_and_busy_are_no_failures(kind: FaultKind) -> None:
    """A request that is at fault itself, and an upstream without capacity, say nothing against the route."""
    route = TimedRoute()
    route.fail(Fault(kind, 400), times=FAILING_FAULTS)
    assert not route.health.is_failing


def test_a_half_open_route_still_fails() -> None:
    """When the rest is over the route is not known to work; a minute after the last fault, requests must find out."""
    route = TimedRoute()
    route.fail(times=FAULTS_TO_OPEN)
    route.now_s += OPEN_S_MIN + 1
    assert (route.health.is_open, route.health.is_failing) == (False, True)
    route.now_s += FAILING_S
    assert not route.health.is_failing
