"""What counts as drift, with simulated models: one that does not change, and several that do."""

from collections.abc import Sequence
from random import Random

import pytest

from cadenza.evaluation.drift import FALSE_ALARM, changed_checks, conformance_drift, find_drift, sign_test
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
    """Of 3,000 watches of models that did not change, no more than the stated rate raise an alarm of a measure."""
    random, alarms = Random(1), 0
    for _ in range(RUNS):
        chances = mixed(random)
        drifts, suspected = find_drift(answers(random, chances), answers(random, chances), ["latency"])
        alarms += len(drifts)
        assert not suspected
    assert alarms <= 2 * FALSE_ALARM * RUNS


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
        drifts, _ = find_drift(answers(random, **usual), answers(random, **(usual | changed)), ["latency"])  # type: ignore[arg-type]
        assert {one.measure for one in drifts} <= {measure}
        found += bool(drifts)
    assert found >= 95


def test_slow_hour() -> None:
    """A slow watch is suspected, and is drift only if the watch before was slow too; a faster one is none."""
    random, chances = Random(3), [1.0] * CASES
    reference, slow = answers(random, chances), answers(random, chances, first_ms=4000)
    assert find_drift(reference, slow) == ([], ["latency"])
    assert [one.measure for one in find_drift(reference, slow, ["latency"])[0]] == ["latency"]
    assert find_drift(slow, reference, ["latency"]) == ([], [])


def test_faults_say_nothing() -> None:
    """Answers that an upstream fault prevented are left out of the comparison."""
    random = Random(4)
    reference = answers(random, [1.0] * CASES)
    broken = [AnswerScore(case_number=one, run=1, side="incumbent", score=0, fault="failed") for one in range(1, 25)]
    assert find_drift(reference, broken + reference[24:]) == ([], [])
    assert find_drift(reference, broken) == ([], [])


def test_sign_test() -> None:
    """Eleven cases that all got worse are below one in a thousand; ten are not."""
    assert sign_test(11, 0) == pytest.approx(2 / 2**11)
    assert sign_test(11, 0) < FALSE_ALARM < sign_test(10, 0)
    assert sign_test(0, 0) == 1.0


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
