"""The answers are in what is sent of files, and little else is."""

import statistics

import pytest
from bench.retrieval import retrieve
from bench.retrieval_files import PLAIN, Maker


@pytest.mark.slow(reason="ranks a whole library of files")
def test_the_answers_are_sent_and_little_else() -> None:
    """Of 29 questions about 13 files at least 27; the median is a few thousand tokens of up to 650,000."""
    made = Maker()
    made.make(PLAIN)
    found = list(retrieve(made))
    assert len(found) == 29
    assert sum(one.has_answer for one in found) >= 27, [one.question.text for one in found if not one.has_answer]
    assert statistics.median(one.tokens for one in found) < 2_200
