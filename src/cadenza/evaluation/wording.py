"""A verdict in one sentence, for the command and the report."""

from cadenza.evaluation.statistics import TIE_MARGIN
from cadenza.evaluation.verdict import Verdict


def describe_decision(verdict: Verdict, candidate: str) -> str:
    span = str(verdict.interval)
    wins, losses, ties = _count(verdict.wins, "win"), _count(verdict.losses, "loss"), _count(verdict.ties, "tie")
    counts = f"{wins}, {losses} and {ties} in {_count(verdict.cases, 'case')}"
    needed = ""
    match verdict.decision:
        case "better":
            said = f"{candidate} is better: its score is {verdict.difference:.3f} higher (95% interval {span})"
        case "worse":
            said = f"{candidate} is worse: its score is {-verdict.difference:.3f} lower (95% interval {span})"
        case "tie":
            said = f"A tie: the scores differ by less than {TIE_MARGIN} (95% interval {span})"
        case "undecided":
            said = f"Undecided: the scores differ by {verdict.difference:+.3f} (95% interval {span})"
            needed = f" About {verdict.cases_needed} cases like these would decide."
    partial = "" if verdict.is_complete else " The evaluation was stopped early, so this is a part of the suite."
    return f"{said}, with {counts}.{needed}{partial}"


def _count(number: int, noun: str) -> str:
    """'1 loss', '2 losses'."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{ending}"
