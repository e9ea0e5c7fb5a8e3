"""A verdict counts cases, not answers, and its JSON is read back as it was."""

import msgspec
import pytest

from cadenza.parts.evaluation.verdict import SIDES, AnswerScore, CaseFacts, Side, Verdict, reach_verdict

CASES = [
    CaseFacts(1, ("json",)),
    CaseFacts(2, ("json", "tools")),
    CaseFacts(3, ("style",)),
]


def answer(number: int, run: int, side: Side, score: float, **fields: object) -> AnswerScore:
    given = {"cost_nano": 1000, "completion_tokens": 10, "first_token_ms": 5.0, "duration_ms": 20.0} | fields
    return msgspec.convert({"case_number": number, "run": run, "side": side, "score": score, **given}, AnswerScore)


def answers(*by_case: tuple[float, float], runs: int = 2, **fields: object) -> list[AnswerScore]:
    """The same scores of incumbent and candidate in every run."""
    return [
        answer(number, run, side, pair[place], **fields)
        for number, pair in enumerate(by_case, 1)
        for run in range(1, runs + 1)
        for place, side in enumerate(SIDES)
    ]


def test_cases_are_counted_by_tag() -> None:
    """Wins, losses and ties are of cases, in all and for each tag."""
    verdict = reach_verdict(CASES, answers((0, 1), (1, 0), (1, 1)), 2)
    assert (verdict.wins, verdict.losses, verdict.ties, verdict.cases) == (1, 1, 1, 3)
    found = {one.tag: (one.wins, one.losses, one.ties) for one in verdict.by_tag}
    assert found == {"json": (1, 1, 0), "style": (0, 0, 1), "tools": (0, 1, 0)}


def test_cases_that_only_the_incumbent_passes_are_counted_by_tag() -> None:
    """A case that both sides fail, or that the candidate wins, is none of them."""
    cases = [CaseFacts(number, ("json",)) for number in range(1, 5)]
    verdict = reach_verdict(cases, answers((0, 1), (1, 0), (0, 0), (1, 1)), 2)
    assert [one.only_incumbent_passes for one in verdict.by_tag] == [1]


def test_the_more_tags_there_are_the_wider_their_intervals() -> None:
    """Of many tags one looks bad by chance, so each needs more evidence; the interval of all cases stays as it is."""
    pairs = [(1, 0)] * 8 + [(1, 1)] * 6 + [(0, 1)]
    alone = reach_verdict([CaseFacts(number, ("a",)) for number in range(1, 16)], answers(*pairs), 2)
    many = reach_verdict([CaseFacts(number, ("a", *"bcdefghij")) for number in range(1, 16)], answers(*pairs), 2)
    assert alone.by_tag[0].interval.high < many.by_tag[0].interval.high
    assert alone.interval == many.interval


def test_only_runs_that_both_sides_have_answered_count() -> None:
    """An answer without its counterpart changes no score, and the verdict is not complete."""
    scores = answers((1, 1), (1, 0), (1, 1))
    lone = [one for one in scores if (one.case_number, one.run, one.side) != (2, 2, "candidate")]
    verdict = reach_verdict(CASES, [*lone, answer(1, 3, "candidate", 0.0)], 2)
    assert verdict.candidate.score == pytest.approx(2 / 3)
    assert (verdict.losses, verdict.is_complete) == (1, False)
    verdict = reach_verdict(CASES, [*answers((1, 1), (1, 1)), answer(3, 1, "incumbent", 0)], 2)
    assert (verdict.cases, verdict.incumbent.score, verdict.is_complete) == (2, 1.0, False)


def test_a_case_is_passed_if_every_run_is() -> None:
    """A case with one failed run is not passed."""
    scores = answers((1, 1), (1, 1), (1, 1))
    failed = [one for one in scores if (one.case_number, one.run, one.side) == (2, 2, "candidate")]
    scores = [msgspec.structs.replace(one, score=0.0) if one in failed else one for one in scores]
    verdict = reach_verdict(CASES, scores, 2)
    assert (verdict.incumbent.passes, verdict.candidate.passes) == (3, 2)
    tools = verdict.tag("tools")
    assert tools
    assert (tools.cases, tools.candidate_passes) == (1, 0)


def test_an_unknown_cost_stays_unknown() -> None:
    """If the cost of one answer of a side is not known, it has no cost per answer, and there is no ratio."""
    scores = [
        msgspec.structs.replace(one, cost_nano=None) if (one.side, one.run) == ("candidate", 2) else one
        for one in answers((1, 1))
    ]
    verdict = reach_verdict(CASES[:1], scores, 2)
    assert (verdict.incumbent.cost_nano, verdict.candidate.cost_nano, verdict.cost_ratio) == (1000, None, None)
    assert not verdict.is_cost_known


@pytest.mark.parametrize(("before", "after", "ratio"), [(2, 1, 0.5), (0, 0, 1.0), (0, 1, None)])
def test_cost_ratio(before: int, after: int, ratio: float | None) -> None:
    """The ratio is of the cost per answer; two free models are equal, and nothing is a multiple of free."""
    scores = [
        msgspec.structs.replace(one, cost_nano=after if one.side == "candidate" else before) for one in answers((1, 1))
    ]
    assert reach_verdict(CASES[:1], scores, 2).cost_ratio == ratio


def test_faults_have_no_times() -> None:
    """A fault counts as a fault, and the times are those of the other answers."""
    scores = [*answers((1, 1), runs=1), *(answer(2, 1, side, 0, fault="timed_out", duration_ms=9e9) for side in SIDES)]
    verdict = reach_verdict(CASES[:2], scores, 1)
    assert (verdict.candidate.faults, verdict.candidate.whole_p95_ms, verdict.p95_ratio) == (1, 20.0, 1.0)


def test_the_json_of_a_verdict_is_read_back() -> None:
    """A verdict survives the way through the store."""
    verdict = reach_verdict(CASES, answers((0, 1), (1, 0), (1, 1)), 2)
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict


def test_nothing_to_compare_is_an_error() -> None:
    """Without one case that both sides answered there is no verdict."""
    with pytest.raises(ValueError, match="nothing to compare"):
        reach_verdict(CASES, [answer(1, 1, "incumbent", 1)], 1)
