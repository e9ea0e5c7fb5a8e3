"""The sequential test of a canary: a bet that does not pay without a difference, and when the canary goes on."""

import math
from itertools import product

import msgspec
import pytest
from bench.canary import Result, SimulatedCanary, Turn, World, simulate

from cadenza.evaluation.canary import (
    ALARM,
    BINS_PER_TOLERANCE,
    GROUPS,
    MEASURES,
    ODDS,
    TOLERANCE,
    Block,
    CanaryState,
    Counts,
    SideCounts,
    StepRules,
    alarm_of,
    bin_of,
    count_beyond,
    decide,
    decode,
    doubts_of,
    e_value,
    encode,
    new_canary,
    shifted,
)

RATES = (0.001, 0.01, 0.1, 0.25, 0.5, 0.9, 0.999)
RULES = StepRules(requests=10, accounts=2, incumbents=10, least_ms=100, wait_ms=1000, requests_least=3)


def chance(n: int, k: int, rate: float) -> float:
    return math.comb(n, k) * rate**k * (1 - rate) ** (n - k)


def expected_e_value(sizes: tuple[int, int], bet: tuple[float, float], rates: tuple[float, float]) -> float:
    """Over all results of a block with these true rates."""
    n_a, n_b = sizes
    return sum(
        chance(n_a, k_a, rates[0]) * chance(n_b, k_b, rates[1]) * e_value(Counts(n_a, k_a, n_b, k_b), *bet)
        for k_a, k_b in product(range(n_a + 1), range(n_b + 1))
    )


@pytest.mark.parametrize("sizes", [(1, 1), (1, 19), (3, 9), (5, 2), (0, 4), (4, 0)])
def test_a_bet_is_not_expected_to_pay(sizes: tuple[int, int]) -> None:
    """Without a difference, and with a better candidate, the expected value of a block is 1 at most, at every rate."""
    for base, odds in product((0.002, 0.05, 0.4), ODDS):
        for ours, theirs in product(RATES, RATES):
            if ours <= theirs:
                assert expected_e_value(sizes, (shifted(base, odds), base), (ours, theirs)) <= 1 + 1e-9


def test_a_bet_pays_if_the_candidate_is_worse() -> None:
    """With a higher rate of the candidate the expected value is above 1."""
    assert expected_e_value((3, 9), (0.1, 0.01), (0.1, 0.01)) > 1.2


def test_capital_is_neither_made_nor_lost_without_a_bet() -> None:
    """A block without one side changes no capital, however many there are."""
    state = CanaryState()
    for _ in range(100):
        state.bets["errors"].take(Counts(5, 5, 0, 0))
    assert state.bets["errors"].capital == pytest.approx(1.0)


def test_tolerance_is_a_number_of_bins() -> None:
    """A value is TOLERANCE times as large as another one that many bins below it."""
    for value in (20, 300, 5000):
        assert bin_of(value * TOLERANCE) - bin_of(value) in (BINS_PER_TOLERANCE, BINS_PER_TOLERANCE + 1)
    assert bin_of(0) == bin_of(1) == 0
    assert bin_of(1e30) == bin_of(1e40)


def test_the_candidate_has_a_tolerance() -> None:
    """The same values are events of the incumbent, and events of the candidate only TOLERANCE further."""
    values = {10: 1, 12: 2, 20: 4}
    assert count_beyond(values, values, 11, 1) == Counts(7, 4, 7, 6)
    assert count_beyond(values, values, 20, -1) == Counts(7, 3, 7, 3)
    assert count_beyond(values, values, 13, -1) == Counts(7, 0, 7, 3)


@pytest.mark.parametrize(("ours", "theirs", "is_whole"), [(1, 2, True), (1, 1, False), (5, 1, True), (0, 9, False)])
def test_a_block_is_compared_when_it_has_enough_of_both_sides(ours: int, theirs: int, is_whole: bool) -> None:
    """Two requests of the incumbent for each of the candidate, or five of the candidate and any of the incumbent."""
    block = Block(candidate=SideCounts(requests=ours), incumbent=SideCounts(requests=theirs))
    assert block.is_whole is is_whole


def test_a_state_survives_its_encoding() -> None:
    """What is stored is what was known; an empty object is a canary that begins."""
    state = decode(new_canary())
    state.add(
        Block(
            candidate=SideCounts(requests=2, errors=1, first_token={7: 2}), incumbent=SideCounts(requests=3), accounts=5
        )
    )
    assert decode(encode(state)) == state
    assert decode("{}") == decode(None) == CanaryState()


def test_a_state_is_small() -> None:
    """With every bin filled by millions of requests it has less than 144 KiB."""
    bins = dict.fromkeys(range(161), 10**7)
    side = SideCounts(requests=10**9, errors=10**8, answers=10**9, cut=10**8, first_token=bins, length=bins)
    state = CanaryState(past_first_token=bins, past_length=bins, open=Block(candidate=side, incumbent=side))
    state.without = [decode(encode(state)) for _ in range(GROUPS)]
    assert len(encode(state)) < 144 * 1024


def failing(count: int) -> CanaryState:
    state = CanaryState()
    for _ in range(count):
        state.add(Block(candidate=SideCounts(requests=1, errors=1), incumbent=SideCounts(requests=19), accounts=1))
    return state


def test_an_alarm_says_what_was_counted() -> None:
    """The decision is a rollback, with the measure and the numbers of both sides."""
    decision = decide(failing(8), 5, 0, RULES)
    assert decision
    assert (decision.share, decision.measure) == (0, "errors")
    assert decision.reason == "errors: 8 of 8 of the candidate, 0 of 152 of the version before"


@pytest.mark.parametrize(
    ("measure", "reason"),
    [
        (
            "first token",
            "first token: above 1636 ms for 2 of 3 of the candidate, above 1090 ms for 4 of 5 of the version",
        ),
        ("longer answers", "longer answers: above 1636 tokens for 2 of 3"),
        ("shorter answers", "shorter answers: below 657 tokens for 2 of 3 of the candidate, below 985 tokens"),
        ("finish reasons", "finish reasons: length or content_filter for 2 of 3 of the candidate, 4 of 5"),
    ],
)
def test_every_measure_has_its_sentence(measure: str, reason: str) -> None:
    """The sentence has the limits of both sides, and how many were beyond."""
    bins = {bin_of(1000): 100}
    state = CanaryState(past_first_token=bins, past_length=bins)
    bet = state.bets[measure]
    bet.n_a, bet.k_a, bet.n_b, bet.k_b, bet.kept = 3, 2, 5, 4, ALARM
    decision = decide(state, 5, 0, RULES)
    assert decision
    assert decision.reason.startswith(reason)


ENOUGH = CanaryState(step_requests=10, step_incumbents=10, step_accounts=0b11)


@pytest.mark.parametrize(
    ("lacking", "share", "waited_ms", "next_share"),
    [
        ({}, 5, 100, 25),
        ({}, 25, 100, 100),
        ({}, 50, 100, 100),
        ({}, 5, 99, None),
        ({"step_requests": 9}, 5, 999, None),
        ({"step_accounts": 0b1}, 5, 999, None),
        ({"step_incumbents": 9}, 5, 999, None),
        ({"step_requests": 0, "step_accounts": 0}, 5, 1000, 25),
        ({"step_requests": 3}, 25, 1000, 100),
        ({"step_requests": 3, "step_accounts": 1}, 25, 10**9, None),
        ({"step_requests": 2}, 25, 10**9, None),
        ({"step_incumbents": 2}, 25, 10**9, None),
    ],
)
def test_when_a_canary_steps_up(lacking: dict[str, int], share: int, waited_ms: int, next_share: int | None) -> None:
    """Enough requests of enough accounts, a comparison and time; after a long wait fewer, but never none at the end."""
    state = msgspec.structs.replace(ENOUGH, **lacking)
    decision = decide(state, share, waited_ms, RULES)
    assert (decision.share if decision else None) == next_share


def test_a_doubtful_canary_does_not_step_up() -> None:
    """With a tenth of the evidence for an alarm the canary waits."""
    state = decode(encode(ENOUGH))
    state.bets["errors"].kept = ALARM / 9
    assert decide(state, 5, 10**9, RULES) is None
    assert alarm_of(state) is None


def steered(ours: SideCounts, theirs: SideCounts, others: SideCounts | None = None) -> CanaryState:
    """A canary in which one account has results like `ours`, and accounts of other groups like `others`."""
    state = decode(new_canary())
    for turn in range(400):
        groups = [Block(incumbent=theirs) for _ in range(GROUPS)]
        groups[0].candidate = ours
        if others:
            groups[1 + turn % (GROUPS - 1)].candidate = others
        state.add_groups(groups)
    return state


GOOD = SideCounts(requests=1, answers=1, first_token={70: 1}, length={50: 1})
CLIENT_MADE = [
    SideCounts(requests=1, answers=1, cut=1, first_token={70: 1}, length={0: 1}),  # max_tokens is 1
    SideCounts(requests=1, answers=1, first_token={120: 1}, length={90: 1}),  # a huge prompt, a long answer
]


@pytest.mark.parametrize("ours", CLIENT_MADE)
@pytest.mark.parametrize("others", [None, GOOD])
def test_one_account_does_not_decide_by_its_own_requests(ours: SideCounts, others: SideCounts | None) -> None:
    """However many of its answers are cut, short, long or late: the canary neither rolls back nor stays in doubt."""
    state = steered(ours, GOOD, others)
    assert max(bet.capital for bet in state.bets.values()) > ALARM
    assert (alarm_of(state), doubts_of(state)) == (None, [])


def test_one_account_that_fails_among_others_does_not_decide() -> None:
    """Errors of one account do not roll back a candidate that answers the others."""
    failed = SideCounts(requests=1, errors=1)
    assert alarm_of(steered(failed, GOOD, GOOD)) is None
    assert alarm_of(steered(failed, GOOD, failed)) == "errors"
    assert alarm_of(steered(failed, GOOD)) == "errors"  # nobody else is served by the candidate


def test_one_account_of_the_incumbent_does_not_decide() -> None:
    """Answers of one token to one account of the version before do not make those of the candidate long."""
    state = decode(new_canary())
    for turn in range(400):
        groups = [Block() for _ in range(GROUPS)]
        groups[0].incumbent = SideCounts(requests=9, answers=9, length={0: 9})
        groups[1].incumbent = groups[2].incumbent = GOOD
        groups[turn % GROUPS].candidate = GOOD
        state.add_groups(groups)
    assert state.bets["longer answers"].capital > ALARM
    assert (alarm_of(state), doubts_of(state)) == (None, [])


def test_a_simulated_canary_decides_as_a_real_one() -> None:
    """It makes the bets without each group late, and has the same doubts and alarms after every turn."""
    simulated, real = SimulatedCanary(), decode(new_canary())
    doubts, alarms = list[list[str]](), list[str | None]()
    for turn in range(12):
        whole, groups = Turn(), [Turn() for _ in range(GROUPS)]
        for number in range(40):
            is_candidate = number % 10 == turn % 10
            result = Result(is_candidate and number % 3 > 0, first_token=60 + 9 * is_candidate, length=50)
            for counted in (whole, groups[number % GROUPS]):
                counted.count(number, is_candidate, result)
        simulated.add(whole)
        real.add_groups([group.block for group in groups])
        doubts.append(doubts_of(real))
        alarms.append(alarm_of(real))
        assert (doubts_of(simulated.state), alarm_of(simulated.state)) == (doubts[-1], alarms[-1])
    assert [] in doubts
    assert {None, "errors"} <= {*alarms}


def test_no_alarm_without_a_difference() -> None:
    """None of 12 seeded canaries without a difference is rolled back."""
    assert [simulate(World(name=""), seed, stops=True).alarm for seed in range(12)] == [None] * 12


@pytest.mark.parametrize(
    ("worse", "measure", "requests"),
    [
        ({"candidate_errors": 1.0}, "errors", 10),
        ({"candidate_errors": 0.5}, "errors", 35),
        ({"slower": 4.0}, "first token", 40),
        ({"longer": 4.0}, "longer answers", 75),
        ({"longer": 0.25}, "shorter answers", 75),
        ({"candidate_cut": 0.5}, "finish reasons", 75),
    ],
)
def test_a_worse_candidate_is_noticed(worse: dict[str, float], measure: str, requests: int) -> None:
    """Each of five seeded canaries is rolled back for the right reason, within a number of requests."""
    world = msgspec.structs.replace(World(name="", turn=20), **worse)
    runs = [simulate(world, seed, stops=False) for seed in range(5)]
    assert {run.alarm for run in runs} == {measure}
    assert max(run.requests for run in runs) <= requests


def test_every_measure_shares_the_probability_of_a_false_alarm() -> None:
    """Together the measures raise a false alarm in one of a hundred canaries at most."""
    assert len(MEASURES) / ALARM == pytest.approx(0.01)
