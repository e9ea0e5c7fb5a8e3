"""The circuit breaker: each row of its table of states, how long it stays open, and requests that come late."""

import pytest

from cadenza.core.breaker import FAULTS_TO_OPEN, OPEN_S_MAX, OPEN_S_MIN, TRIAL_S, Breaker, BreakerState

NOW_S = 1000.0
RETRY_AFTER_S = 7.0


def fail(breaker: Breaker, now_s: float, times: int = 1, *, has_answered: bool = False) -> list[bool]:
    """Requests that begin and fail at this time; whether each opened the breaker."""
    return [breaker.record_fault(now_s, now_s, has_answered=has_answered, is_busy=False) for _ in range(times)]


def opened(now_s: float = NOW_S) -> Breaker:
    """A breaker that five faults opened."""
    breaker = Breaker(now_s)
    fail(breaker, now_s, FAULTS_TO_OPEN)
    assert breaker.state(now_s) is BreakerState.OPEN
    return breaker


@pytest.mark.parametrize("has_answered", [False, True])
def test_closed_becomes_open_after_five_faults_in_a_row(has_answered: bool) -> None:
    """The fifth fault in a row opens it for OPEN_S_MIN, and no fault before it does."""
    breaker = Breaker(NOW_S)
    assert fail(breaker, NOW_S, FAULTS_TO_OPEN - 1, has_answered=has_answered) == [False] * (FAULTS_TO_OPEN - 1)
    assert breaker.state(NOW_S) is BreakerState.CLOSED
    assert fail(breaker, NOW_S, has_answered=has_answered) == [True]
    assert breaker.state(NOW_S) is BreakerState.OPEN
    assert breaker.open_s(NOW_S) == OPEN_S_MIN
    assert not breaker.is_busy


def test_open_becomes_half_open_when_the_rest_is_over() -> None:
    """It is open until the very end of its rest, and half-open from then on."""
    breaker = opened()
    assert breaker.state(NOW_S + OPEN_S_MIN - 0.01) is BreakerState.OPEN
    assert breaker.open_s(NOW_S + OPEN_S_MIN - 0.01) == pytest.approx(0.01)
    for late_s in (0.0, 3600.0):
        assert breaker.state(NOW_S + OPEN_S_MIN + late_s) is BreakerState.HALF_OPEN
        assert breaker.open_s(NOW_S + OPEN_S_MIN + late_s) == 0


@pytest.mark.parametrize("waited_s", [0.5, OPEN_S_MIN], ids=["open", "half-open"])
def test_an_answer_closes_it(waited_s: float) -> None:
    """The trial's answer closes it, when it is half-open and when the trial was a last resort."""
    breaker = opened()
    breaker.record_response(NOW_S + waited_s)
    assert breaker.state(NOW_S + waited_s) is BreakerState.CLOSED


@pytest.mark.parametrize("waited_s", [0.5, OPEN_S_MIN], ids=["open", "half-open"])
def test_a_fault_of_the_trial_opens_it_again_for_twice_as_long(waited_s: float) -> None:
    """One fault is enough when the breaker is open or half-open after faults."""
    breaker = opened()
    assert fail(breaker, NOW_S + waited_s) == [True]
    assert breaker.state(NOW_S + waited_s) is BreakerState.OPEN
    assert breaker.open_s(NOW_S + waited_s) == 2 * OPEN_S_MIN


def test_half_open_after_a_retry_after_needs_five_faults_to_open() -> None:
    """A route that only asked for a rest has no faults in a row: its trials go on until the fifth of them fails."""
    breaker, now_s = Breaker(NOW_S), NOW_S + RETRY_AFTER_S
    breaker.open(NOW_S, RETRY_AFTER_S, is_busy=True)
    assert fail(breaker, now_s, FAULTS_TO_OPEN - 1) == [False] * (FAULTS_TO_OPEN - 1)
    assert breaker.state(now_s) is BreakerState.HALF_OPEN
    assert fail(breaker, now_s) == [True]
    assert breaker.state(now_s) is BreakerState.OPEN


def test_a_trial_that_hangs_does_not_block_the_next() -> None:
    """After TRIAL_S without an answer another trial may begin, so a route that works again is soon used again."""
    breaker = opened()
    assert breaker.begin_trial(NOW_S)
    assert not breaker.begin_trial(NOW_S + TRIAL_S - 0.01)
    assert breaker.begin_trial(NOW_S + TRIAL_S)
    assert not breaker.begin_trial(NOW_S + TRIAL_S)


def test_a_rest_doubles_up_to_its_maximum() -> None:
    """Each failed trial doubles the rest, and no rest is longer than OPEN_S_MAX."""
    breaker, now_s, rests_s = opened(), NOW_S, list[float]()
    for _ in range(40):
        rests_s.append(breaker.open_s(now_s))
        now_s += breaker.open_s(now_s)
        fail(breaker, now_s)
    assert rests_s == pytest.approx([min(OPEN_S_MAX, OPEN_S_MIN * 2**number) for number in range(40)])


def test_an_answer_resets_the_count_of_faults_and_the_length_of_the_rest() -> None:
    """After an answer it takes five faults to open again, and the first rest is the shortest."""
    breaker = opened()
    fail(breaker, NOW_S + 1)
    breaker.record_response(NOW_S + 3)
    assert fail(breaker, NOW_S + 3, FAULTS_TO_OPEN) == [False] * (FAULTS_TO_OPEN - 1) + [True]
    assert breaker.open_s(NOW_S + 3) == OPEN_S_MIN


def test_faults_before_and_after_the_first_token_are_counted_separately() -> None:
    """Four of each open nothing; an answer resets only the first count, a finished reply only the second."""
    breaker = Breaker(NOW_S)
    fail(breaker, NOW_S, FAULTS_TO_OPEN - 1)
    assert fail(breaker, NOW_S, FAULTS_TO_OPEN - 1, has_answered=True) == [False] * (FAULTS_TO_OPEN - 1)
    breaker.record_response(NOW_S)
    assert fail(breaker, NOW_S) == [False]
    breaker.record_finish()
    assert fail(breaker, NOW_S, FAULTS_TO_OPEN - 1, has_answered=True) == [False] * (FAULTS_TO_OPEN - 1)
    assert fail(breaker, NOW_S, has_answered=True) == [True]


def test_requests_sent_before_it_opened_neither_prolong_the_rest_nor_close_it() -> None:
    """However many of them fail or are answered late, the rest stays as it was, and the next one only doubles."""
    breaker, sent_s, late_s = opened(), NOW_S - 1, NOW_S + 0.5
    assert not any(breaker.record_fault(sent_s, late_s, has_answered=False, is_busy=False) for _ in range(50))
    breaker.record_response(sent_s)
    assert breaker.open_s(late_s) == OPEN_S_MIN - 0.5
    fail(breaker, NOW_S + OPEN_S_MIN)
    assert breaker.open_s(NOW_S + OPEN_S_MIN) == 2 * OPEN_S_MIN


def test_the_longest_retry_after_counts() -> None:
    """A shorter Retry-After that comes later does not shorten the rest."""
    breaker = Breaker(NOW_S)
    breaker.open(NOW_S, 20.0, is_busy=True)
    breaker.open(NOW_S, 1.0, is_busy=True)
    assert breaker.open_s(NOW_S) == 20.0


def test_a_retry_after_does_not_excuse_a_route_that_failed() -> None:
    """A breaker that faults opened is not busy because of a 429 during its rest; after the rest it can be."""
    breaker = opened()
    breaker.open(NOW_S, RETRY_AFTER_S, is_busy=True)
    assert not breaker.is_busy
    breaker.open(NOW_S + RETRY_AFTER_S, RETRY_AFTER_S, is_busy=True)
    assert breaker.is_busy


def test_a_reset_closes_it_and_forgets_all_faults() -> None:
    """Requests sent before the reset count for nothing; a trial that runs stays the only one."""
    breaker = opened()
    assert breaker.begin_trial(NOW_S)
    breaker.reset(NOW_S + 0.5)
    assert breaker.state(NOW_S + 0.5) is BreakerState.CLOSED
    assert not any(breaker.record_fault(NOW_S, NOW_S + 1, has_answered=False, is_busy=False) for _ in range(50))
    assert not breaker.begin_trial(NOW_S)
    assert fail(breaker, NOW_S + 1, FAULTS_TO_OPEN) == [False] * (FAULTS_TO_OPEN - 1) + [True]
    assert breaker.open_s(NOW_S + 1) == OPEN_S_MIN
