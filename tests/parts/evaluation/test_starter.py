"""The starter suite: every case has a grader that passes a right answer and fails a wrong one."""

from collections import Counter

from cadenza.parts.evaluation.graders import GradedReply, Graders, ReplyCall, grade
from cadenza.parts.evaluation.suite import Case, load_suite
from tests.parts.evaluation.known_quality import WrittenAnswer, cases_by_key, references, starter

TAGS = {
    *("instructions", "reasoning", "arithmetic", "code", "json", "tools", "long_context", "languages", "refusals"),
    "character",
}


async def passes(case: Case, answer: WrittenAnswer, graders: Graders) -> bool:
    calls = tuple(ReplyCall(call.name, call.arguments) for call in answer.calls)
    return await grade(case, GradedReply(answer.text, calls), graders)


async def test_every_right_answer_passes_and_every_wrong_one_fails() -> None:
    """No grader is too strict or too lenient for its references."""
    async with Graders() as graders:
        for case in starter().cases:
            assert await passes(case, references()[case.id].answer(is_right=True), graders), case.id
            assert not await passes(case, references()[case.id].answer(is_right=False), graders), case.id


def test_the_starter_suite_has_what_the_docs_promise() -> None:
    """Some 120 cases over ten tags, each with its references; no two are confused."""
    cases = starter().cases
    counts = Counter(case.tags[0] for case in cases)
    assert counts.keys() == TAGS
    assert min(counts.values()) >= 9
    assert 110 <= len(cases) <= 130
    assert {case.id for case in cases} == references().keys()
    assert len(cases_by_key()) == len(cases)


def test_the_digest_is_of_what_is_asked_and_graded() -> None:
    """Loaded twice, generated texts included, the suite has the same digest."""
    assert load_suite(None).digest == load_suite(None).digest == starter().digest
