"""How an evaluation is shown: its progress on standard error, and its verdict as a sentence and tables."""

import sys
import time
from collections.abc import Mapping

import click

from cadenza.core.money import format_dollars
from cadenza.parts.evaluation.runner import RunProgress
from cadenza.parts.evaluation.verdict import SideSummary, TagSummary, Verdict, describe_decision, show_cost
from cadenza.terminal.console import print_table, say, to_row

BAR_CHARS = 24
PLAIN_LINE_S = 5.0  # between lines of progress that is not shown on a terminal
TAG_COLUMNS = (
    "tag",
    "cases",
    "wins",
    "losses",
    "ties",
    "incumbent",
    "candidate",
    "difference, interval",
)
SIDE_COLUMNS = ("", "incumbent", "candidate")


class ProgressBar:
    """Done and total, the cost so far and the time left: a bar on a terminal, else a line every few seconds."""

    def __init__(self, budget_nano: int) -> None:
        self._budget = f"${format_dollars(budget_nano)}"
        self._is_terminal = sys.stderr.isatty()
        self._began_s = self._shown_s = time.monotonic()
        self._before = 0
        self._shown = -1

    def begin(self, done_before: int) -> None:
        self._before, self._began_s = done_before, time.monotonic()

    def show(self, progress: RunProgress) -> None:
        now_s = time.monotonic()
        is_over = progress.done == progress.total
        if progress.done == self._shown:
            return
        if not self._is_terminal and now_s - self._shown_s < PLAIN_LINE_S and not is_over:
            return
        self._shown_s, self._shown = now_s, progress.done
        line = f"{progress.done}/{progress.total} pairs, ${show_cost(progress.spent_nano)} of {self._budget}"
        if not is_over:
            line += f", {self._left(progress, now_s)} left"
        if self._is_terminal:
            filled = BAR_CHARS * progress.done // max(progress.total, 1)
            click.echo(f"\r\x1b[K{'█' * filled}{'░' * (BAR_CHARS - filled)} {line}", err=True, nl=is_over)
        else:
            say(line)

    def _left(self, progress: RunProgress, now_s: float) -> str:
        done = progress.done - self._before
        if not done:
            return "?"
        left_s = round((now_s - self._began_s) / done * (progress.total - progress.done))
        return f"{left_s // 60}:{left_s % 60:02d}"


def print_verdict(verdict: Verdict, incumbent: str, candidate: str) -> None:
    click.secho(describe_decision(verdict, candidate), bold=True)
    click.echo()
    print_table(_side_rows(verdict, incumbent, candidate), SIDE_COLUMNS)
    click.echo()
    print_table([_tag_row(one) for one in verdict.by_tag], TAG_COLUMNS)
    click.echo()
    spent = f"This evaluation has cost at most ${show_cost(verdict.spent_nano)}"
    if verdict.is_cost_known:
        click.echo(f"{spent}.")
    else:
        click.echo(f"{spent} by the prices of the class, because the costs are not known: set cost_input and")
        click.echo("cost_output of the routes in the config.")


def print_gate(class_id: str, candidate: str, shortfalls: list[str], suite_matters: str) -> None:
    if shortfalls:
        click.echo(f"\nIt does not pass the gate of '{class_id}':")
        for one in shortfalls:
            click.echo(f"  {one}")
    elif suite_matters:
        click.echo(f"\n{suite_matters}")
    else:
        click.echo(f"\nIt passes the gate of '{class_id}': cadenza class promote {class_id} --candidate {candidate}")


def _tag_row(one: TagSummary) -> Mapping[str, object]:
    scores = {"incumbent": f"{one.incumbent:.3f}", "candidate": f"{one.candidate:.3f}"}
    return {**to_row(one, "tag", "cases", "wins", "losses", "ties"), **scores, TAG_COLUMNS[-1]: str(one.interval)}


def _side_rows(verdict: Verdict, incumbent: str, candidate: str) -> list[Mapping[str, object]]:
    def column(model: str, side: SideSummary, won: str) -> dict[str, str]:
        return {
            "model": model,
            "score": f"{side.score:.3f}",
            "cases won": won,
            "cases passed": f"{side.passes} of {verdict.cases}",
            "cost per answer": "not known" if side.cost_nano is None else f"${show_cost(side.cost_nano)}",
            "first token p50, p95": _times(side.first_p50_ms, side.first_p95_ms),
            "whole answer p50, p95": _times(side.whole_p50_ms, side.whole_p95_ms),
            "tokens per answer": f"{side.tokens:.1f}",
            "faults": str(side.faults),
            "checks repeated": str(side.repeated),
            "wire conformance": _conformance(side),
        }

    before = column(incumbent, verdict.incumbent, str(verdict.losses))
    after = column(candidate, verdict.candidate, f"{verdict.wins}, and {verdict.ties} ties")
    return [dict(zip(SIDE_COLUMNS, (name, before[name], after[name]), strict=True)) for name in before]


def _times(first: float | None, second: float | None) -> str:
    return "–" if first is None or second is None else f"{first:.0f}, {second:.0f} ms"


def _conformance(side: SideSummary) -> str:
    """The checks by state, like 'warning: stream, tools'."""
    states = dict.fromkeys(check.state for check in side.conformance if check.state != "ok")
    names = {state: ", ".join(one.name for one in side.conformance if one.state == state) for state in states}
    bad = "; ".join(f"{state}: {checks}" for state, checks in sorted(names.items()))
    return bad or (f"all {len(side.conformance)} ok" if side.conformance else "not tried")
