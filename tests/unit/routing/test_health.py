"""The circuit breaker of a route: when it begins to rest, for how long, who tries it then, and what ends the rest."""

import pytest

from cadenza.routing.health import FAULTS_TO_REST, REST_S_MAX, REST_S_MIN, Attempt, RouteHealth
from cadenza.upstreams.base import Fault, FaultKind

KEY = "key_a"
FAILED = Fault(FaultKind.FAILED, 500)
FAILURES = [kind for kind in FaultKind if kind not in {FaultKind.BUSY, FaultKind.REFUSED}]


class Lab:
    """One route, and a clock that only the test moves."""

    def __init__(self, most: int = 100) -> None:
        self.now_s = 1000.0
        self.health = RouteHealth(most, lambda: self.now_s)

    def begin(self, *, is_last_resort: bool = False) -> Attempt:
        attempt = self.health.begin(KEY, is_last_resort=is_last_resort)
        assert attempt is not None
        return attempt

    @property
    def takes_one(self) -> bool:
        """Whether a request would be given a place; it is given back at once."""
        attempt = self.health.begin(KEY)
        if attempt:
            attempt.end()
        return attempt is not None

    def fail(self, fault: Fault = FAILED, times: int = 1) -> None:
        """So many requests, one after the other, that come to nothing."""
        for _ in range(times):
            attempt = self.begin()
            self.now_s += 0.001
            attempt.note_fault(fault)
            attempt.end()

    def answer(self) -> None:
        """A request that is answered to its end."""
        attempt = self.begin()
        attempt.note_answer(is_stream=True)
        attempt.note_finish()
        attempt.end()

    def cut(self, times: int = 1) -> None:
        """So many replies that begin and break off."""
        for _ in range(times):
            attempt = self.begin()
            attempt.note_answer(is_stream=True)
            attempt.note_fault(Fault(FaultKind.TRUNCATED))
            attempt.end()

    def rest(self) -> None:
        """Fail until it rests, and wait until it may be tried."""
        self.fail(times=FAULTS_TO_REST)
        assert self.health.is_down
        self.now_s += self.health.rest_s


@pytest.mark.parametrize("kind", FAILURES)
def test_faults_in_a_row_begin_a_rest(kind: FaultKind) -> None:
    """The last of FAULTS_TO_REST faults in a row begins a rest of REST_S_MIN, and none before it."""
    lab = Lab()
    lab.fail(Fault(kind), FAULTS_TO_REST - 1)
    assert not lab.health.is_resting
    lab.fail(Fault(kind))
    assert lab.health.is_down
    assert lab.health.rest_s == pytest.approx(REST_S_MIN)
    assert not lab.takes_one


def test_an_answer_between_faults_begins_the_count_anew() -> None:
    """Faults that are not in a row never add up."""
    lab = Lab()
    for _ in range(3):
        lab.fail(times=FAULTS_TO_REST - 1)
        lab.answer()
    assert not lab.health.is_resting


def test_a_rest_ends_by_itself() -> None:
    """A route may be tried at the very end of its rest and not before."""
    lab = Lab()
    lab.fail(times=FAULTS_TO_REST)
    lab.now_s += REST_S_MIN - 0.01
    assert not lab.takes_one
    lab.now_s += 0.01
    assert not lab.health.is_resting
    assert lab.takes_one


def test_failed_trials_double_the_rest_up_to_its_limit() -> None:
    """Each trial that fails makes the next rest twice as long, and none is longer than REST_S_MAX."""
    lab, rests_s = Lab(), list[float]()
    lab.fail(times=FAULTS_TO_REST)
    for _ in range(40):
        rests_s.append(lab.health.rest_s)
        lab.now_s += lab.health.rest_s
        lab.fail()
    expected = [min(REST_S_MAX, REST_S_MIN * 2**number) for number in range(40)]
    assert rests_s == pytest.approx(expected)


def test_after_a_success_rests_are_short_again() -> None:
    """An answer ends it all: it takes FAULTS_TO_REST faults to rest again, and the first rest is the shortest."""
    lab = Lab()
    lab.rest()
    lab.fail()
    assert lab.health.rest_s == pytest.approx(2 * REST_S_MIN)
    lab.now_s += lab.health.rest_s
    lab.answer()
    lab.fail(times=FAULTS_TO_REST - 1)
    assert not lab.health.is_resting
    lab.fail()
    assert lab.health.rest_s == pytest.approx(REST_S_MIN)


def test_what_failed_together_makes_one_rest() -> None:
    """Faults of requests that were begun before the rest do not make it longer, however many and late they are."""
    lab = Lab()
    together = [lab.begin() for _ in range(50)]
    lab.now_s += 5
    for attempt in together[:FAULTS_TO_REST]:
        attempt.note_fault(FAILED)
    until_s = lab.now_s + lab.health.rest_s
    lab.now_s += 0.5
    for attempt in together[FAULTS_TO_REST:]:
        attempt.note_fault(FAILED)
    assert lab.now_s + lab.health.rest_s == pytest.approx(until_s)
    lab.now_s = until_s
    lab.fail()
    assert lab.health.rest_s == pytest.approx(2 * REST_S_MIN)


def test_who_was_asked_before_a_rest_cannot_end_it() -> None:
    """A late answer to an old request says nothing of how the route is now."""
    lab = Lab()
    old = lab.begin()
    lab.fail(times=FAULTS_TO_REST)
    old.note_answer(is_stream=True)
    assert lab.health.is_down
    assert not lab.takes_one


def test_one_trial_at_a_time() -> None:
    """When the rest is over one request tries the route, and the next only when that one has ended."""
    lab = Lab()
    lab.rest()
    trial = lab.begin()
    assert trial.is_trial
    assert not lab.takes_one
    assert lab.health.begin(KEY, is_last_resort=True) is None
    trial.end()
    assert lab.takes_one


def test_a_trial_that_is_answered_opens_the_route_at_once() -> None:
    """The first word of a trial is enough for everybody to be let in, though the trial goes on."""
    lab = Lab()
    lab.rest()
    trial = lab.begin()
    trial.note_answer(is_stream=True)
    assert all(not lab.begin().is_trial for _ in range(10))


def test_a_trial_that_streams_for_long_does_not_forbid_the_next() -> None:
    """A route that rested, was well and rests again can be tried again, though the first trial still streams."""
    lab = Lab()
    lab.rest()
    lab.begin().note_answer(is_stream=True)
    lab.rest()
    assert lab.takes_one


def test_the_last_resort_is_asked_within_its_rest_one_at_a_time() -> None:
    """A route that rests is still there for one request at a time that has no other; its answer ends the rest."""
    lab = Lab()
    lab.fail(times=FAULTS_TO_REST)
    attempt = lab.begin(is_last_resort=True)
    assert lab.health.begin(KEY, is_last_resort=True) is None
    attempt.note_answer(is_stream=False)
    assert not lab.health.is_resting
    assert lab.takes_one


def test_a_last_resort_that_fails_doubles_the_rest() -> None:
    """Whoever is asked within its rest and fails has failed a trial."""
    lab = Lab()
    lab.fail(times=FAULTS_TO_REST)
    attempt = lab.begin(is_last_resort=True)
    attempt.note_fault(FAILED)
    attempt.end()
    assert lab.health.rest_s == pytest.approx(2 * REST_S_MIN)


def test_cuts_are_counted_apart() -> None:
    """A route that begins well and breaks off rests too, though each of its beginnings was an answer."""
    lab = Lab()
    lab.cut(FAULTS_TO_REST - 1)
    lab.fail(times=FAULTS_TO_REST - 1)
    assert not lab.health.is_resting
    lab.cut()
    assert lab.health.is_down


def test_a_whole_reply_forgives_the_cuts() -> None:
    """Cuts that are not in a row never add up."""
    lab = Lab()
    for _ in range(3):
        lab.cut(FAULTS_TO_REST - 1)
        lab.answer()
    assert not lab.health.is_resting


def test_a_refusal_changes_nothing() -> None:
    """Requests that the upstream finds fault with say nothing against the route, nor for it."""
    lab = Lab()
    lab.fail(times=FAULTS_TO_REST - 1)
    lab.fail(Fault(FaultKind.REFUSED, 400), 100)
    assert not lab.health.is_resting
    lab.fail()
    assert lab.health.is_down


@pytest.mark.parametrize(("kind", "status"), [(FaultKind.BUSY, 429), (FaultKind.FAILED, 503), (FaultKind.FAILED, 529)])
def test_a_retry_after_is_honoured(kind: FaultKind, status: int) -> None:
    """One answer with a Retry-After is enough: the route rests for so long; it is down only if it did not say 429."""
    lab = Lab()
    lab.fail(Fault(kind, status, 7.0))
    assert lab.health.rest_s == pytest.approx(7.0)
    assert lab.health.is_down == (kind is FaultKind.FAILED)
    lab.now_s += 7.0
    assert lab.takes_one


def test_the_longest_wish_counts() -> None:
    """A shorter Retry-After that comes later does not shorten a rest."""
    lab = Lab()
    attempts = [lab.begin(), lab.begin()]
    attempts[0].note_fault(Fault(FaultKind.BUSY, 429, 20.0))
    attempts[1].note_fault(Fault(FaultKind.BUSY, 429, 1.0))
    assert lab.health.rest_s == pytest.approx(20.0)


@pytest.mark.parametrize("retry_after_s", [None, 0.0])
def test_busy_without_a_wait_is_no_rest(retry_after_s: float | None) -> None:
    """A 429 that names no time lowers the ceiling alone, however often it comes."""
    lab = Lab()
    attempts = [lab.begin() for _ in range(50)]
    lab.now_s += 0.1
    for attempt in attempts:
        attempt.note_fault(Fault(FaultKind.BUSY, 429, retry_after_s))
    assert not lab.health.is_resting
    assert lab.health.limit < 100


def test_forgetting_makes_it_fit_and_keeps_what_is_in_flight() -> None:
    """A route that is begun anew takes requests at once; what it is answering stays counted."""
    lab = Lab()
    lab.begin()
    lab.fail(times=FAULTS_TO_REST)
    lab.health.forget()
    assert not lab.health.is_resting
    assert lab.health.in_flight == 1
    assert not lab.begin().is_trial


def test_faults_of_before_are_forgotten_even_if_they_come_late() -> None:
    """Requests that were begun before the route was begun anew do not make it rest."""
    lab = Lab()
    old = [lab.begin() for _ in range(FAULTS_TO_REST)]
    lab.now_s += 1
    lab.health.forget()
    lab.now_s += 1
    for attempt in old:
        attempt.note_fault(FAILED)
    assert not lab.health.is_resting
