"""What counts as drift, with simulated models: one that does not change, and several that do."""

from collections.abc import Sequence
from random import Random

import msgspec
import pytest

from cadenza.evaluation.drift import (
    FALSE_ALARM,
    SUSPICION,
    WINDOWS,
    chance_of,
    changed_checks,
    conformance_drift,
    find_drift,
)
from cadenza.evaluation.verdict import ConformanceCheck
from cadenza.store.tables.verdicts import AnswerScore

CASES = 30
RUNS = 3_000


def answers(random: Random, chances: Sequence[float], tokens: float = 60, first_ms: float = 400) -> list[AnswerScore]:
    """One watch of a model that passes each case with its own chance; lengths and times vary by a quarter."""
    return [
        AnswerScore(
            case_number=number,
            run=1,
            side="incumbent",
            score=float(random.random() < chance),
            completion_tokens=round(tokens * random.lognormvariate(0, 0.25)),
            first_token_ms=first_ms * random.lognormvariate(0, 0.25),
        )
        for number, chance in enumerate(chances, start=1)
    ]


def mixed(random: Random) -> list[float]:
    """Some cases are sure, some are a coin."""
    return [random.choice([0.0, 0.3, 0.5, 0.9, 1.0]) for _ in range(CASES)]


def test_unchanged_model() -> None:
    """Of 3,000 watches of models that did not change, no more than the stated rates raise an alarm or a suspicion."""
    random, alarms, doubts = Random(1), 0, 0
    for _ in range(RUNS // WINDOWS[-1]):
        chances, watches = mixed(random), list[list[AnswerScore]]()
        reference = answers(random, chances)
        for _ in range(WINDOWS[-1]):
            watches.insert(0, answers(random, chances))
            drifts, suspected, _ = find_drift(reference, watches, ["latency"])
            alarms += len(drifts)
            doubts += len(suspected)
            assert "latency" not in suspected
    assert alarms <= 2 * FALSE_ALARM * RUNS
    assert doubts <= SUSPICION * RUNS


@pytest.mark.parametrize(
    ("changed", "measure"),
    [
        ({"chances": [0.2] * CASES}, "score"),
        ({"tokens": 240}, "tokens"),
        ({"tokens": 15}, "tokens"),
        ({"first_ms": 1600}, "latency"),
    ],
)
def test_changed_model(changed: dict[str, object], measure: str) -> None:
    """A model that answers worse, longer, shorter or later than before is found in at least 95 of 100 watches."""
    random, usual = Random(2), {"chances": [0.95] * CASES}
    found = 0
    for _ in range(100):
        drifts, *_ = find_drift(answers(random, **usual), [answers(random, **(usual | changed))], ["latency"])  # type: ignore[arg-type]
        assert {one.measure for one in drifts} <= {measure}
        found += bool(drifts)
    assert found >= 95


def test_slow_hour() -> None:
    """A slow watch is suspected, and is drift only if the watch before was slow too; a faster one is none."""
    random, chances = Random(3), [1.0] * CASES
    reference, slow = answers(random, chances), answers(random, chances, first_ms=4000)
    assert find_drift(reference, [slow])[:2] == ([], ["latency"])
    assert [one.measure for one in find_drift(reference, [slow], ["latency"])[0]] == ["latency"]
    assert find_drift(slow, [reference], ["latency"])[:2] == ([], [])


def test_faults_say_nothing() -> None:
    """Answers that an upstream fault prevented are left out of the comparison."""
    random = Random(4)
    reference = answers(random, [1.0] * CASES)
    broken = [AnswerScore(case_number=one, run=1, side="incumbent", score=0, fault="failed") for one in range(1, 25)]
    assert find_drift(reference, [broken + reference[24:]])[:2] == ([], [])
    assert find_drift(reference, [broken])[:2] == ([], [])
    lost = [msgspec.structs.replace(one, score=0.0) for one in reference]
    assert [one.measure for one in find_drift(reference, [lost, broken])[0]] == ["score"]


def passing(count: int) -> list[AnswerScore]:
    """A watch of 30 cases that passes the first ones."""
    return [AnswerScore(case_number=one, run=1, side="incumbent", score=one <= count) for one in range(1, CASES + 1)]


def test_a_drop_is_never_called_steady_and_is_drift_if_it_stays() -> None:
    """27 of 30 and then 17: suspected by one watch, drift by two, and no drift any more once it is mended."""
    reference, before, dropped = passing(27), [passing(27)] * WINDOWS[-1], passing(17)
    assert find_drift(reference, [dropped, *before]) == (
        [],
        ["score"],
        "0.900 -> 0.567; of 30 cases 10 are worse and 0 better, by chance with a probability of 0.008",
    )
    drifts, suspected, _ = find_drift(reference, [dropped, dropped, *before])
    assert ([one.measure for one in drifts], suspected) == (["score"], [])
    assert drifts[0].detail.endswith("of 0.0001 over the last 2 watches")
    assert find_drift(reference, [passing(27), dropped, dropped, *before])[:2] == ([], [])


@pytest.mark.parametrize(("lost", "watches"), [(11, 1), (8, 2), (5, 8)])
def test_the_fewer_cases_are_lost_the_more_watches_it_takes(lost: int, watches: int) -> None:
    """Cases that stay lost are found by one, two or eight watches; one case fewer is not found by as many."""
    for count, expected in ((lost, ["score"]), (lost - 1, [])):
        drifts, *_ = find_drift(passing(CASES), [passing(CASES - count)] * watches)
        assert [one.measure for one in drifts] == expected


def test_the_test_of_scores_is_exact() -> None:
    """One watch is a sign test; a case that several watches lose is the reference's luck once in as many answers."""
    change, chance = chance_of([(True, [False])] * 11 + [(True, [True])] * 9)
    assert change == -11
    assert chance == pytest.approx(2 / 2**11)
    change, chance = chance_of([(True, [False, False])] * 5 + [(False, [False, False])])
    assert change == -5
    assert chance == pytest.approx(2 / 3**5)
    assert chance_of([(False, [True])] * 4)[1] == chance_of([(True, [False])] * 4)[1]
    assert chance_of([]) == (0.0, 1.0)


def test_conformance() -> None:
    """A check counts as changed if its state differs from the reference's in every try."""
    before = [ConformanceCheck("stop", "ok"), ConformanceCheck("tools", "ok"), ConformanceCheck("usage", "fault")]
    first = [ConformanceCheck("stop", "fault"), ConformanceCheck("tools", "warning"), ConformanceCheck("new", "ok")]
    second = [ConformanceCheck("stop", "fault"), ConformanceCheck("tools", "ok")]
    assert changed_checks(before, first, second) == [("stop", "ok", "fault")]
    found = conformance_drift(changed_checks(before, first, second))
    assert found is not None
    assert found.detail == "stop: ok -> fault"
    assert conformance_drift([]) is None
