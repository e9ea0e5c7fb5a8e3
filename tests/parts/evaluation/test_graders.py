"""Graders, one by one: what passes, and what does not."""

import json

import pytest

from cadenza.parts.evaluation.graders import GradedReply, Graders, ReplyCall, grade, last_number, same_value
from cadenza.parts.evaluation.suite import (
    CallsTools,
    Case,
    Contains,
    Exact,
    ExpectedCall,
    Grader,
    JsonIs,
    MustNotContain,
    NumberIs,
    Pattern,
)


def case_of(*given: Grader) -> Case:
    return Case(id="a", tags=("x",), messages=[{"role": "user", "content": "Why?"}], graders=given)


TEXTS: list[tuple[Grader, list[str], list[str]]] = [
    (Exact(texts=("Paris",)), ["Paris", " Paris\n"], ["paris", "Paris.", "In Paris"]),
    (Exact(texts=("New York",), ignore_case=True), ["new  york"], ["newyork"]),
    (Exact(texts=("a  b",), ignore_space=False), ["a  b"], ["a b"]),
    (Exact(texts=("Café",), ignore_punctuation=True), ["**Cafe\u0301.**", "“Café”"], ["Cafe"]),
    (Contains(texts=("one", "two")), ["Two and ONE"], ["one"]),
    (Contains(texts=("one", "two"), match="any", ignore_case=False), ["two"], ["Two"]),
    (MustNotContain(texts=("secret",)), ["nothing"], ["a SECRET"]),
    (Pattern(pattern=r"^\d{3}$"), ["123", "a\n"[:0] + "456"], ["1234"]),
    (Pattern(pattern="yes", match="full", ignore_case=True), ["YES", "yes\n"], ["yes!"]),
    (Pattern(pattern="as an AI", match="absent"), ["Hello"], ["I, as an AI, …"]),
    (NumberIs(value=43), ["43", "17 + 26 = 43.", "**43**", "$\\boxed{43}$"], ["42", "none", "43 or 44"]),
    (NumberIs(value=-7), ["-7", "−7", "It is –7"], ["7", "10-7"]),
    (NumberIs(value=3.14, tolerance=0.01), ["3.1416", "about 3.15"], ["3.2"]),
    (NumberIs(value=1000, relative=0.01), ["1,009", "990.5"], ["1011"]),
    (JsonIs(equals={"a": [1]}), ['{"a": [1.0]}', '```json\n{"a":[1]}\n```'], ['{"a":[true]}', "x"]),
    (JsonIs(equals=1, allow_fence=False), ["1"], ["```\n1\n```"]),
    (JsonIs(schema={"type": "object", "required": ["a"]}), ['{"a": 1}'], ["{}", "[]"]),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(TEXTS)))
async def test_texts(graders: Graders, place: int) -> None:
    """A grader passes each right text and fails each wrong one."""
    grader, right, wrong = TEXTS[place]
    for text in right:
        assert await grade(case_of(grader), GradedReply(text), graders), text
    for text in wrong:
        assert not await grade(case_of(grader), GradedReply(text), graders), text


NUMBERS = {
    "1,234,567.5": 1234567.5,
    "12 500": 12500,
    "1’000": 1000,
    "from 3 to 12,5": 5,
    "= .5": 0.5,
    "3/4": 0.75,
    "1e-3": 0.001,
    "1.5E3 m": 1500,
    "In 2024, 17": 17,
    "1{,}296": 1296,
    "x2": 2,
    "45%": 45,
    "1/0": 1,
    "9" * 400: None,
    "no": None,
}


@pytest.mark.parametrize("text", NUMBERS)
def test_the_last_number_of_a_text(text: str) -> None:
    """Separators, signs, decimals, fractions and exponents are read as people write them."""
    assert last_number(text) == NUMBERS[text]


def test_a_decimal_comma() -> None:
    """With a decimal comma, points separate thousands."""
    assert last_number("1.234,5", ",") == 1234.5


def calls(*given: tuple[str, object]) -> tuple[ReplyCall, ...]:
    return tuple(ReplyCall(name, json.dumps(arguments)) for name, arguments in given)


A, B = ExpectedCall("a", {"x": 1, "y": "z"}), ExpectedCall("b", {"n": 2}, "subset")
BY_SCHEMA = ExpectedCall("c", {"properties": {"city": {"pattern": "^Oslo"}}, "required": ["city"]}, "schema")
CALLS: list[tuple[CallsTools, list[tuple[ReplyCall, ...]], list[tuple[ReplyCall, ...]]]] = [
    (
        CallsTools((A,)),
        [calls(("a", {"y": "z", "x": 1.0}))],
        [(), calls(("a", {"x": 1})), calls(("a", {"x": 1, "y": "z", "q": 0})), (ReplyCall("a", "{"),)],
    ),
    (CallsTools((B,)), [calls(("b", {"n": 2, "more": 1}))], [calls(("b", {"n": 3})), calls(("b", [2]))]),
    (CallsTools((BY_SCHEMA,)), [calls(("c", {"city": "Oslo, Norway"}))], [calls(("c", {"city": "Bergen"}))]),
    (CallsTools((A, B)), [calls(("b", {"n": 2}), ("a", {"x": 1, "y": "z"}))], [calls(*[("b", {"n": 2})] * 2)]),
    (CallsTools((A, B), in_order=True), [], [calls(("b", {"n": 2}), ("a", {"x": 1, "y": "z"}))]),
    (CallsTools((ExpectedCall("a"),)), [calls(("a", {})), (ReplyCall("a", ""),)], [calls(("b", {}))]),
    (CallsTools(()), [()], [calls(("a", {}))]),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(CALLS)))
async def test_tool_calls(graders: Graders, place: int) -> None:
    """Names and arguments are compared: equal, as a subset, by a schema, several calls, none."""
    grader, right, wrong = CALLS[place]
    for given in right:
        assert await grade(case_of(grader), GradedReply("", given), graders), given
    for given in wrong:
        assert not await grade(case_of(grader), GradedReply("", given), graders), given


async def test_an_answer_that_is_too_long_fails(graders: Graders) -> None:
    """However right it is: it would be searched on the service's own loop."""
    case = case_of(Contains(texts=("a",)))
    assert await grade(case, GradedReply("a" * 400_000), graders)
    assert not await grade(case, GradedReply("a" * 400_001), graders)


async def test_all_graders_must_pass(graders: Graders) -> None:
    """One grader that fails is enough."""
    case = case_of(Contains(texts=("a",)), MustNotContain(texts=("b",)))
    assert await grade(case, GradedReply("a"), graders)
    assert not await grade(case, GradedReply("a b"), graders)


def test_values_are_compared_as_json() -> None:
    """1 is 1.0 and not true, and floats may differ in the last digit."""
    assert same_value({"a": [1, 0.1 + 0.2]}, {"a": [1.0, 0.3]})
    assert not same_value(True, 1)
    assert not same_value([1], [1, 2])
    assert not same_value("1", 1)
