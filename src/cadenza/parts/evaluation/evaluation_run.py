"""What `cadenza class evaluate` does: ask both sides the cases of a suite, and print the verdict."""

import io
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import click
import msgspec

from cadenza.config import Settings
from cadenza.config.build import build_upstreams
from cadenza.config.class_records import class_rules, find_candidate, known_cost, resolve_classes, served_version
from cadenza.config.kinds import kind_of
from cadenza.control.class_changes import ClassRules, name_routes
from cadenza.core.attempts import EVALUATION, AttemptCounts
from cadenza.core.classes import ClassVersion
from cadenza.core.money import format_dollars
from cadenza.core.records import Route
from cadenza.observe import make_log
from cadenza.parts.evaluation.evaluate import Evaluated, EvaluationEvents, EvaluationOrder, evaluate
from cadenza.parts.evaluation.gate import find_shortfalls
from cadenza.parts.evaluation.graders import Graders
from cadenza.parts.evaluation.runner import AskedSide, SuiteRun
from cadenza.parts.evaluation.suite import load_suite
from cadenza.parts.evaluation.verdict import Side
from cadenza.parts.evaluation.verdict_output import ProgressBar, print_gate, print_verdict
from cadenza.parts.evaluation.verdict_rows import EvaluationRecord
from cadenza.store.store import Store
from cadenza.store.tables.attempts import add as add_attempts
from cadenza.terminal.console import now_ms, print_json, say, to_row
from cadenza.upstreams.base import Upstream
from cadenza.upstreams.billed import BilledUpstream

STOPPED_CODE = 2


class EvaluateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed, and the budget in nano-dollars."""

    class_id: str
    candidate: str
    suite: Path | None
    runs: int
    budget_nano: int
    concurrency: int
    restart: bool
    as_json: bool


async def run_suite(store: Store, settings: Settings, options: EvaluateOptions) -> int:
    """Evaluate with a suite of cases, and return the exit code."""
    rules = class_rules(settings, options.class_id)
    suite = load_suite(options.suite or rules.suite)
    states = await resolve_classes(store, settings)
    incumbent = served_version(states, options.class_id)
    candidate = find_candidate(settings, options.class_id, options.candidate)
    asked = (*incumbent.main_routes, candidate)
    async with running(store, settings, asked) as upstreams, Graders() as graders:
        run = SuiteRun(
            suite=suite,
            character=incumbent.character,
            sides=_sides(settings, incumbent, candidate),
            upstreams=upstreams,
            runs=options.runs,
            concurrency=options.concurrency,
            budget_nano=options.budget_nano,
        )
        order = EvaluationOrder(incumbent=incumbent, candidate=candidate, run=run, restart=options.restart)
        _say_what_is_not_known(order)
        bar = ProgressBar(options.budget_nano)
        events = EvaluationEvents(lambda record, done: _say_begin(order, record, done, bar), bar.show)
        found = await evaluate(store, order, graders, events)
    _print(options, rules, order, found)
    if not found.is_out_of_budget:
        return 0
    budget = format_dollars(options.budget_nano)
    say(f"Stopped at the budget of ${budget}. Repeat the command with a higher --budget to go on.")
    return STOPPED_CODE


@asynccontextmanager
async def running(store: Store, settings: Settings, routes: Iterable[Route]) -> AsyncIterator[Mapping[str, Upstream]]:
    """The upstreams of these routes, while a command asks them. Their log would run into what it prints.

    Their requests are counted in the store as attempts of an evaluation.
    """
    upstreams, attempts = build_upstreams(settings, make_log(io.StringIO()), routes), AttemptCounts(now_ms)
    try:
        for upstream in upstreams.values():
            await upstream.start()
        yield {name: BilledUpstream(upstream, attempts, EVALUATION) for name, upstream in upstreams.items()}
    finally:
        for upstream in upstreams.values():
            await upstream.stop()
        await add_attempts(store, attempts.take())


def _sides(settings: Settings, incumbent: ClassVersion, candidate: Route) -> dict[Side, AskedSide]:
    def side(*routes: Route) -> AskedSide:
        first = settings.providers[routes[0].provider]
        dialect = None if kind_of(first.kind).is_local else first.dialect
        return AskedSide(routes, known_cost(settings, routes), settings.prices[incumbent.class_id], dialect)

    return {"incumbent": side(*incumbent.main_routes), "candidate": side(candidate)}


def _say_what_is_not_known(order: EvaluationOrder) -> None:
    unknown = [side for side, asked in order.run.sides.items() if asked.cost is None]
    if unknown:
        say(
            f"The costs of the {' and the '.join(unknown)} are not known, so the budget counts the prices of "
            f"'{order.incumbent.class_id}' instead. Set cost_input and cost_output of these routes in the config."
        )


def _say_begin(order: EvaluationOrder, record: EvaluationRecord, done: int, bar: ProgressBar) -> None:
    run = order.run
    again = f", going on after {done} pairs" if done else ""
    say(
        f"{record.id}: {order.candidate.name} against version {record.incumbent} of '{record.class_id}', "
        f"{len(run.suite.cases)} cases of '{run.suite.name}', {run.runs} run{'s' if run.runs > 1 else ''}{again}"
    )
    bar.begin(done)


def _print(options: EvaluateOptions, rules: ClassRules, order: EvaluationOrder, found: Evaluated) -> None:
    shortfalls = find_shortfalls(found.verdict, rules.gate)
    if options.as_json:
        fields = to_row(
            found.record, "id", "class_id", "state", "incumbent", "candidate", "suite", "runs", "created_at"
        )
        ratios = to_row(found.verdict, "cost_ratio", "p95_ratio", "why_undecided")
        print_json([{**fields, "verdict": msgspec.to_builtins(found.verdict), **ratios, "shortfalls": shortfalls}])
        return
    print_verdict(found.verdict, name_routes(order.incumbent), order.candidate.name)
    for advice in found.advice:
        click.echo(f"{order.candidate.name}: {advice}")
    is_gates = load_suite(rules.suite).digest == order.run.suite.digest
    other = "" if is_gates else "The gate of this class asks for a verdict on another suite: this one opens no gate."
    print_gate(options.class_id, order.candidate.name, shortfalls, other)
