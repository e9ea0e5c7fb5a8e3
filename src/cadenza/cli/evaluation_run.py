"""What `cadenza classes evaluate` does: ask and print, with a suite of cases or with a task of Inspect."""

import io
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from cadenza.app import build_upstreams
from cadenza.cli.console import now_ms, print_json, say, to_row
from cadenza.cli.private_service import private_service, read_spent
from cadenza.cli.verdict_output import ProgressBar, print_gate, print_verdict
from cadenza.config import Settings
from cadenza.config.classes import asked_side, class_rules, find_candidate, resolve_classes, served_version
from cadenza.control.classes import ClassRules, name_routes
from cadenza.core.attempts import EVALUATION, AttemptCounts
from cadenza.core.classes import ClassVersion
from cadenza.core.records import COMMAND_LINE, Route
from cadenza.evaluation.evaluate import (
    Evaluated,
    EvaluationEvents,
    EvaluationOrder,
    end_record,
    evaluate,
    new_record,
)
from cadenza.evaluation.gate import find_shortfalls
from cadenza.evaluation.graders import Graders
from cadenza.evaluation.inspect_tasks import InspectOrder, InspectResult, content_folder, find_program, run_inspect
from cadenza.evaluation.report import render_report
from cadenza.evaluation.runner import AskedSide, SuiteRun
from cadenza.evaluation.suite import load_suite
from cadenza.evaluation.verdict import Verdict, reach_verdict
from cadenza.observe import make_log
from cadenza.store.store import Store
from cadenza.store.tables import verdicts
from cadenza.store.tables.attempts import add as add_attempts
from cadenza.store.tables.verdicts import EvaluationRecord, Side
from cadenza.upstreams.base import Upstream
from cadenza.upstreams.billed import BilledUpstream

STOPPED_CODE = 2


class EvaluateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed, and the budget in nano-dollars."""

    class_id: str
    candidate: str
    suite: Path | None
    runs: int
    budget: str
    budget_nano: int
    judge: str | None
    concurrency: int
    report: Path | None
    restart: bool
    inspect: str | None
    inspect_program: str | None
    limit: int | None
    as_json: bool


def check_options(options: EvaluateOptions) -> None:
    path = options.report
    if path and path.suffix != ".html":
        raise ValueError(f"--report {path}: the name must end in .html")
    if path and not path.parent.is_dir():
        raise ValueError(f"--report {path}: there is no folder {path.parent}")
    if options.inspect and (options.report or options.restart or options.judge or options.suite):
        raise ValueError("--inspect takes none of --suite, --judge, --report and --restart: see docs/evaluation.md")


async def run_suite(store: Store, settings: Settings, options: EvaluateOptions) -> int:
    """Evaluate with a suite of cases, and return the exit code."""
    rules = class_rules(settings, options.class_id)
    suite = load_suite(options.suite or rules.suite)
    states = await resolve_classes(store, settings)
    incumbent = served_version(states, options.class_id)
    judge = served_version(states, options.judge) if options.judge else None
    candidate = find_candidate(settings, options.class_id, options.candidate)
    judges = judge.main_routes[:1] if judge else ()
    asked = (*incumbent.main_routes, candidate, *judges)
    async with running(store, settings, asked, EVALUATION) as upstreams, Graders() as graders:
        run = SuiteRun(
            suite=suite,
            character=incumbent.character,
            sides=_sides(settings, incumbent, candidate),
            upstreams=upstreams,
            runs=options.runs,
            concurrency=options.concurrency,
            budget_nano=options.budget_nano,
            judge=asked_side(settings, judges, judge.class_id) if judge else None,
        )
        order = EvaluationOrder(
            incumbent=incumbent,
            candidate=candidate,
            run=run,
            actor=COMMAND_LINE,
            restart=options.restart,
            keeps_answers=options.report is not None,
        )
        _say_what_is_not_known(order)
        bar = ProgressBar(options.budget_nano)
        events = EvaluationEvents(lambda record, done: _say_begin(order, record, done, bar), bar.show, now_ms)
        found = await evaluate(store, order, graders, events)
    if options.report:
        _write_report(options.report, order, found)
    _print(options, rules, order, found)
    if not found.is_out_of_budget:
        return 0
    say(f"Stopped at the budget of ${options.budget}. Repeat the command with a higher --budget to go on.")
    return STOPPED_CODE


@asynccontextmanager
async def running(
    store: Store, settings: Settings, routes: Iterable[Route], kind: str
) -> AsyncIterator[Mapping[str, Upstream]]:
    """The upstreams of these routes, while a command asks them. Their log would run into what it prints.

    Their requests are counted in the store as attempts of this kind.
    """
    upstreams, attempts = build_upstreams(settings, make_log(io.StringIO()), routes), AttemptCounts(now_ms)
    try:
        for upstream in upstreams.values():
            await upstream.start()
        yield {name: BilledUpstream(upstream, attempts, kind) for name, upstream in upstreams.items()}
    finally:
        for upstream in upstreams.values():
            await upstream.stop()
        await add_attempts(store, attempts.take())


def _sides(settings: Settings, incumbent: ClassVersion, candidate: Route) -> dict[Side, AskedSide]:
    return {
        "incumbent": asked_side(settings, incumbent.main_routes, incumbent.class_id),
        "candidate": asked_side(settings, (candidate,), incumbent.class_id),
    }


def _say_what_is_not_known(order: EvaluationOrder) -> None:
    unknown = [side for side, asked in order.run.sides.items() if asked.cost is None]
    if unknown:
        say(
            f"The costs of the {' and the '.join(unknown)} are not known, so the budget counts the prices of "
            f"'{order.incumbent.class_id}' instead. Set cost_input and cost_output of these routes in the config."
        )
    if skipped := len(order.run.suite.cases) - len(order.run.asked):
        say(f"{skipped} cases have a rubric and are left out: name a class that judges them with --judge.")


def _say_begin(order: EvaluationOrder, record: EvaluationRecord, done: int, bar: ProgressBar) -> None:
    run = order.run
    again = f", going on after {done} pairs" if done else ""
    say(
        f"{record.id}: {order.candidate.name} against version {record.incumbent} of '{record.class_id}', "
        f"{len(run.asked)} cases of '{run.suite.name}', {run.runs} run{'s' if run.runs > 1 else ''}{again}"
    )
    bar.begin(done)


def _print(options: EvaluateOptions, rules: ClassRules, order: EvaluationOrder, found: Evaluated) -> None:
    shortfalls = find_shortfalls(found.verdict, rules.gate)
    if options.as_json:
        fields = to_row(
            found.record, "id", "class_id", "state", "incumbent", "candidate", "suite", "runs", "created_at"
        )
        ratios = to_row(found.verdict, "cost_ratio", "p95_ratio")
        print_json([{**fields, "verdict": msgspec.to_builtins(found.verdict), **ratios, "shortfalls": shortfalls}])
        return
    print_verdict(found.verdict, name_routes(order.incumbent), order.candidate.name)
    is_gates = load_suite(rules.suite).digest == order.run.suite.digest
    other = "" if is_gates else "The gate of this class asks for a verdict on another suite: this one opens no gate."
    print_gate(options.class_id, order.candidate.name, shortfalls, other)


def _write_report(path: Path, order: EvaluationOrder, found: Evaluated) -> None:
    """For the eyes of this user only: the page has all messages and answers."""
    page = render_report(order, found)
    path.unlink(missing_ok=True)  # a file that exists would keep its mode
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(page)
    say(f"Report: {path}. It contains the messages and answers. It is on this disk only; delete it when you are done.")


async def run_task(store: Store, settings: Settings, options: EvaluateOptions) -> None:
    """Evaluate with a task of Inspect. The verdict is recorded under the task's name, once it is reached."""
    assert options.inspect
    began_ms = now_ms()
    incumbent = served_version(await resolve_classes(store, settings), options.class_id)
    candidate = find_candidate(settings, options.class_id, options.candidate)
    wanted = InspectOrder(
        task=options.inspect,
        program=options.inspect_program,
        limit=options.limit,
        epochs=options.runs,
        connections=options.concurrency,
    )
    found, verdict = await evaluate_with_inspect(settings, incumbent, candidate, wanted, options.budget_nano)
    suite = (f"inspect:{found.name}", found.digest)
    begun = new_record(incumbent, candidate, suite, options.runs, COMMAND_LINE, began_ms)
    record = end_record(begun, verdict, now_ms())
    await store.transact(lambda tx: verdicts.add(tx, record))
    if options.as_json:
        print_json([{**to_row(record, "id", "class_id", "state", "suite"), "verdict": msgspec.to_builtins(verdict)}])
    else:
        print_verdict(verdict, name_routes(incumbent), candidate.name)


async def evaluate_with_inspect(
    settings: Settings, incumbent: ClassVersion, candidate: Route, order: InspectOrder, budget_nano: int
) -> tuple[InspectResult, Verdict]:
    """Inspect asks both sides at private endpoints. All content is in a folder that is deleted."""
    find_program(order.program)
    sides = _sides(settings, incumbent, candidate)
    with content_folder() as folder:
        served = private_service(settings, sides, incumbent.character, budget_nano, folder, 2 * order.connections)
        async with served as endpoints:
            found = await run_inspect(order, endpoints, folder)
        spent_nano = await read_spent(folder, budget_nano)
    return found, reach_verdict(found.cases, found.scores, order.epochs, spent_nano=spent_nano)
