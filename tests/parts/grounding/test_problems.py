"""A search engine that fails is a problem."""

from collections import Counter

from cadenza.observe.facts import Facts
from cadenza.observe.health import COUNTERS, problems
from cadenza.parts.grounding.problems import FAILURES, SEARCH_FAILS


def failures(**counts: int) -> Facts:
    return Facts(recent={FAILURES: Counter(counts)})


def test_an_engine_that_fails_is_a_problem() -> None:
    """Five failures of search in five minutes are one, however many of memory there are; two may be chance."""
    assert problems(failures(search=6, memory=9)) == [SEARCH_FAILS.problem("6 in the last 5 minutes.")]
    assert problems(failures(search=2, memory=9)) == []
    assert COUNTERS[FAILURES] == "part"
