"""Hostile patterns, schemas and answers: they fail their case within seconds, and nothing else happens."""

import time

import pytest

from cadenza.parts.evaluation.graders import GradedReply, Graders, grade
from cadenza.parts.evaluation.suite import Contains, Grader, JsonIs, Pattern, read_suite
from tests.parts.evaluation.test_graders import case_of

DEEP = (
    '{"id": "a", "tags": ["x"], "messages": [{"role": "user", "content": "?"}], "graders": [{"kind": "json", "equals": '
    + "[" * 900
    + "]" * 900
    + "}]}"
)

pytestmark = pytest.mark.slow(reason="patterns run up to their limits, in a child process for each case")


async def passes(graders: Graders, grader: Grader, text: str) -> bool:
    return await grade(case_of(grader), GradedReply(text), graders)


BACKTRACKING = [Pattern(pattern=r"(a+)+$"), Pattern(pattern=r"(a+)+$", match="absent")]


@pytest.mark.parametrize("grader", BACKTRACKING, ids=["search", "absent"])
async def test_a_catastrophic_pattern_fails_its_case_within_its_limit(graders: Graders, grader: Pattern) -> None:
    """A pattern that backtracks for ever costs its CPU limit, and the next case is graded."""
    began_s = time.monotonic()
    assert not await passes(graders, grader, "a" * 60 + "b")
    assert time.monotonic() - began_s < 20
    assert await passes(graders, Pattern(pattern=r"^a"), "abc")


async def test_a_catastrophic_pattern_of_a_schema_fails_its_case(graders: Graders) -> None:
    """A pattern inside of a schema has the same limits."""
    schema = {"type": "string", "pattern": r"^(\w+\s?)+$"}
    assert not await passes(graders, JsonIs(schema=schema), '"' + "a" * 40 + '!"')


ANSWERS_OF_ANY_LENGTH: dict[str, tuple[Grader, str]] = {
    "fence": (JsonIs(equals=1), "```" + "a" * 2_000 + "\n" * 100_000),
    "marks": (Contains(texts=("b",)), "a" + "\u0301" * 50_000 + "\u0323" * 50_000),
}


@pytest.mark.parametrize("name", ANSWERS_OF_ANY_LENGTH)
async def test_an_answer_is_searched_in_linear_time(graders: Graders, name: str) -> None:
    """A fence without an end and a heap of combining marks are graded at once: the service's own loop does it."""
    grader, text = ANSWERS_OF_ANY_LENGTH[name]
    began_s = time.process_time()
    assert not await passes(graders, grader, text)
    assert time.process_time() - began_s < 5


async def test_values_that_cannot_be_compared_fail_their_case(graders: Graders) -> None:
    """An integer beyond every float, and lists as deep as the suite's own, score 0 and end nothing."""
    assert not await passes(graders, JsonIs(equals=1.5), "9" * 400)
    deep = read_suite("s", DEEP.encode()).cases[0]
    assert not await grade(deep, GradedReply("[" * 900 + "]" * 900), graders)
