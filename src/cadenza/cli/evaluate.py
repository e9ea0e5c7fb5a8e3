"""cadenza classes evaluate: compare a candidate with what serves a class, before it may replace it."""

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from cadenza.cli.console import config_option, json_option, load_config, now_ms, print_json, say, to_row, with_store
from cadenza.core.money import parse_dollars
from cadenza.core.records import COMMAND_LINE

if TYPE_CHECKING:
    from cadenza.cli.verdict_output import ProgressBar
    from cadenza.config import Settings
    from cadenza.control.classes import ClassRules
    from cadenza.core.classes import ClassVersion
    from cadenza.evaluation.evaluate import Evaluated, EvaluationOrder
    from cadenza.evaluation.suite import Suite
    from cadenza.store.store import Store
    from cadenza.store.tables.verdicts import EvaluationRecord

RUNS_MAX = 20
CONCURRENCY_MAX = 64
STOPPED_CODE = 2
INTERRUPTED_CODE = 130


class EvaluateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed."""

    class_id: str
    candidate: str
    suite: Path | None
    runs: int
    budget: str
    judge: str | None
    concurrency: int
    report: Path | None
    restart: bool
    inspect: str | None
    inspect_program: str | None
    limit: int | None
    as_json: bool


@click.command()
@click.argument("class_id", metavar="CLASS")
@click.option(
    "--candidate", metavar="PROVIDER/MODEL", required=True, help="The model that may replace the main routes."
)
@click.option(
    "--suite",
    metavar="FILE",
    type=click.Path(path_type=Path),
    show_default="that of the class's gate, else the starter suite",
    help="The cases, as JSONL.",
)
@click.option(
    "--runs",
    metavar="NUMBER",
    type=click.IntRange(1, RUNS_MAX),
    default=3,
    show_default=True,
    help="How often each case is asked.",
)
@click.option("--budget", metavar="DOLLARS", default="2.00", show_default=True, help="The most that it may cost.")
@click.option("--judge", metavar="CLASS", help="The class whose main route compares answers by a rubric.")
@click.option(
    "--concurrency",
    metavar="NUMBER",
    type=click.IntRange(1, CONCURRENCY_MAX),
    default=4,
    show_default=True,
    help="How many cases are asked at once.",
)
@click.option("--report", metavar="FILE", type=click.Path(path_type=Path), help="Write a page with all answers.")
@click.option("--restart", is_flag=True, help="Begin anew instead of going on with an interrupted evaluation.")
@click.option("--inspect", metavar="TASK", help="Run a task of Inspect as the suite.")
@click.option("--inspect-program", metavar="FILE", show_default="inspect, on the PATH", help="The program of Inspect.")
@click.option("--limit", metavar="NUMBER", type=click.IntRange(1), help="How many samples of the task of Inspect.")
@json_option
@config_option
def evaluate(config: str | None, **given: object) -> None:
    """Compare a candidate with what serves a class, on a suite of cases. No account is charged.

    Repeat the command to go on with an evaluation that was interrupted or stopped at its budget.
    """
    options = msgspec.convert(given, EvaluateOptions)
    settings = load_config(config)
    settings.require_secrets()
    if options.report:
        _check_report(options.report)
    try:
        budget_nano = parse_dollars(options.budget)
    except ValueError as error:
        raise ValueError(f"--budget: {error}") from None
    if options.inspect:
        code = with_store(settings, lambda store: _inspect(store, settings, options, budget_nano))
    else:
        try:
            code = with_store(settings, lambda store: _evaluate(store, settings, options, budget_nano))
        except KeyboardInterrupt:
            say("\nInterrupted. Repeat the same command to go on: what was answered is not asked again.")
            code = INTERRUPTED_CODE
    if code:
        sys.exit(code)


async def _evaluate(store: "Store", settings: "Settings", options: EvaluateOptions, budget_nano: int) -> int:
    from cadenza.app import class_rules, resolve_classes, running, served_version  # noqa: PLC0415 import time
    from cadenza.cli.verdict_output import ProgressBar  # noqa: PLC0415 import time
    from cadenza.evaluation.evaluate import EvaluationEvents, evaluate  # noqa: PLC0415 import time
    from cadenza.evaluation.graders import Graders  # noqa: PLC0415 import time
    from cadenza.evaluation.suite import load_suite  # noqa: PLC0415 import time

    rules = class_rules(settings, options.class_id)
    suite = load_suite(options.suite or rules.suite)
    states = await resolve_classes(store, settings, serves=False)
    incumbent = served_version(states, options.class_id)
    judge = served_version(states, options.judge) if options.judge else None
    order = _build_order(settings, options, suite, incumbent, judge, budget_nano)
    _say_what_is_not_known(order, options)
    bar = ProgressBar(budget_nano)
    events = EvaluationEvents(lambda record, done: _say_begin(order, record, done, bar), bar.show, now_ms)
    async with running(order.run.upstreams), Graders() as graders:
        found = await evaluate(store, order, graders, events)
    if options.report:
        _write_report(options.report, order, found)
    _print(options, rules, order, found)
    if not found.is_out_of_budget:
        return 0
    say(f"Stopped at the budget of ${options.budget}. Repeat the command with a higher --budget to go on.")
    return STOPPED_CODE


def _build_order(
    settings: "Settings",
    options: EvaluateOptions,
    suite: "Suite",
    incumbent: "ClassVersion",
    judge: "ClassVersion | None",
    budget_nano: int,
) -> "EvaluationOrder":
    from cadenza.app import asked_side, build_upstreams, tried_route  # noqa: PLC0415 import time
    from cadenza.config.load import find_candidate  # noqa: PLC0415 import time
    from cadenza.evaluation.evaluate import EvaluationOrder  # noqa: PLC0415 import time
    from cadenza.evaluation.runner import SuiteRun  # noqa: PLC0415 import time
    from cadenza.observe import make_log  # noqa: PLC0415 import time

    candidate = find_candidate(settings, options.class_id, options.candidate)
    judges = judge.main_routes[:1] if judge else ()

    silent = make_log(io.StringIO())  # a log would run into the progress bar
    run = SuiteRun(
        suite=suite,
        character=incumbent.character,
        sides={
            "incumbent": asked_side(settings, incumbent.main_routes, incumbent.class_id),
            "candidate": asked_side(settings, (candidate,), incumbent.class_id),
        },
        upstreams=build_upstreams(settings, silent, (*incumbent.main_routes, candidate, *judges)),
        runs=options.runs,
        concurrency=options.concurrency,
        budget_nano=budget_nano,
        judge=asked_side(settings, judges, judge.class_id) if judge else None,
    )
    return EvaluationOrder(
        incumbent=incumbent,
        candidate=candidate,
        run=run,
        tried={
            "incumbent": tried_route(settings, incumbent.main_routes[0]),
            "candidate": tried_route(settings, candidate),
        },
        actor=COMMAND_LINE,
        restart=options.restart,
        keeps_answers=options.report is not None,
    )


def _say_what_is_not_known(order: "EvaluationOrder", options: EvaluateOptions) -> None:
    unknown = [side for side, asked in order.run.sides.items() if asked.cost is None]
    if unknown:
        say(
            f"The costs of the {' and the '.join(unknown)} are not known, so the budget counts the prices of "
            f"'{options.class_id}' instead. Set cost_input and cost_output of these routes in the config."
        )
    if skipped := len(order.run.suite.cases) - len(order.run.asked):
        say(f"{skipped} cases have a rubric and are left out: name a class that judges them with --judge.")


def _say_begin(order: "EvaluationOrder", record: "EvaluationRecord", done: int, bar: "ProgressBar") -> None:
    run = order.run
    again = f", going on after {done} pairs" if done else ""
    say(
        f"{record.id}: {order.candidate.name} against version {record.incumbent} of '{record.class_id}', "
        f"{len(run.asked)} cases of '{run.suite.name}', {run.runs} run{'s' if run.runs > 1 else ''}{again}"
    )
    bar.begin(done)


def _print(options: EvaluateOptions, rules: "ClassRules", order: "EvaluationOrder", found: "Evaluated") -> None:
    from cadenza.cli.verdict_output import print_gate, print_verdict  # noqa: PLC0415 import time
    from cadenza.control.classes import name_routes  # noqa: PLC0415 import time
    from cadenza.evaluation.gate import find_shortfalls  # noqa: PLC0415 import time
    from cadenza.evaluation.suite import load_suite  # noqa: PLC0415 import time

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


def _check_report(path: Path) -> None:
    if path.suffix != ".html":
        raise ValueError(f"--report {path}: the name must end in .html")
    if not path.parent.is_dir():
        raise ValueError(f"--report {path}: there is no folder {path.parent}")


def _write_report(path: Path, order: "EvaluationOrder", found: "Evaluated") -> None:
    """For the eyes of this user only: the page has all messages and answers."""
    from cadenza.evaluation.report import render_report  # noqa: PLC0415 import time

    page = render_report(order, found)
    path.unlink(missing_ok=True)  # a file that exists would keep its mode
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(page)
    say(f"Report: {path}. It contains the messages and answers. It is on this disk only; delete it when you are done.")


async def _inspect(store: "Store", settings: "Settings", options: EvaluateOptions, budget_nano: int) -> int:
    """The verdict on a task of Inspect, recorded under the task's name."""
    from cadenza.app import resolve_classes, served_version  # noqa: PLC0415 import time
    from cadenza.cli.inspect_run import evaluate_with_inspect  # noqa: PLC0415 import time
    from cadenza.cli.verdict_output import print_verdict  # noqa: PLC0415 import time
    from cadenza.config.load import find_candidate  # noqa: PLC0415 import time
    from cadenza.control.classes import name_routes  # noqa: PLC0415 import time
    from cadenza.core.codes import random_id  # noqa: PLC0415 import time
    from cadenza.evaluation.inspect_tasks import InspectOrder  # noqa: PLC0415 import time
    from cadenza.store.tables import verdicts  # noqa: PLC0415 import time

    if options.report or options.restart or options.judge or options.suite:
        raise ValueError("--inspect takes none of --suite, --judge, --report and --restart: see docs/evaluation.md")
    assert options.inspect
    incumbent = served_version(await resolve_classes(store, settings, serves=False), options.class_id)
    candidate = find_candidate(settings, options.class_id, options.candidate)
    wanted = InspectOrder(
        task=options.inspect,
        program=options.inspect_program,
        limit=options.limit,
        epochs=options.runs,
        connections=options.concurrency,
    )
    began_ms = now_ms()
    found = await evaluate_with_inspect(settings, incumbent, candidate, wanted, budget_nano)
    verdict = found.verdict
    record = verdicts.EvaluationRecord(
        id=f"eval_{random_id()}",
        class_id=incumbent.class_id,
        state="finished" if verdict.is_complete else "stopped",
        created_at=began_ms,
        ended_at=now_ms(),
        actor=COMMAND_LINE,
        incumbent=incumbent.number,
        candidate=candidate.name,
        candidate_digest=incumbent.with_candidate(candidate).digest,
        suite=f"inspect:{found.found.name}",
        suite_digest=found.found.digest,
        runs=options.runs,
        spent_nano=verdict.spent_nano,
        result=verdict.to_json(),
    )
    await store.transact(lambda tx: verdicts.add(tx, record))
    if options.as_json:
        print_json([{**to_row(record, "id", "class_id", "state", "suite"), "verdict": msgspec.to_builtins(verdict)}])
    else:
        print_verdict(verdict, name_routes(incumbent), candidate.name)
    return 0
