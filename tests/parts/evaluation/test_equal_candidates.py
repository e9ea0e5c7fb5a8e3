"""How often the default gate refuses a candidate that is as good as the incumbent."""

from random import Random

import pytest

from cadenza.core.classes import GateLimits
from cadenza.parts.evaluation.gate import find_shortfalls
from cadenza.parts.evaluation.verdict import SIDES, AnswerScore, CaseFacts, ConformanceCheck, WireChecks, reach_verdict
from tests.parts.evaluation.known_quality import starter

RUNS = 3
OK = WireChecks((ConformanceCheck("stream", "ok"),))
FACTS = [CaseFacts(number, case.tags) for number, case in enumerate(starter().cases, 1)]


def is_refused(chance: Random, quality: float, spread: float) -> bool:
    """One evaluation of two models that pass a case with chances of the same distribution, each run anew."""
    answers = [
        AnswerScore(case_number=one.number, run=run, side=side, score=float(chance.random() < passes))
        for one in FACTS
        for side in SIDES
        for passes in [min(1.0, max(0.0, chance.gauss(quality, spread)))]
        for run in range(1, RUNS + 1)
    ]
    return bool(find_shortfalls(reach_verdict(FACTS, answers, RUNS, wires=(OK, OK)), GateLimits()))


@pytest.mark.slow(reason="draws thousands of samples for each of many evaluations")
@pytest.mark.parametrize(("quality", "spread"), [(0.93, 0.1), (0.7, 0.3), (0.5, 0.5)])
def test_an_equal_candidate_is_rarely_refused(quality: float, spread: float) -> None:
    """Of 6 evaluations of equal models with the ten tags of the starter suite, none is refused."""
    chance = Random(f"{quality} {spread}")
    assert sum(is_refused(chance, quality, spread) for _ in range(6)) == 0
