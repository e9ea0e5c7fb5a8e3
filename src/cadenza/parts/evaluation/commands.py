"""cadenza class evaluate | suite: compare a candidate with what serves a class, before it may replace it."""

import sys
from collections import Counter
from pathlib import Path

import click
import msgspec

from cadenza.config import Settings
from cadenza.core.money import parse_dollars
from cadenza.parts.evaluation.evaluation_run import EvaluateOptions, run_suite
from cadenza.parts.evaluation.suite import load_suite
from cadenza.process import protect_memory
from cadenza.terminal.configured import settings_option, with_store
from cadenza.terminal.console import json_option, print_json, say
from cadenza.terminal.lazy import CommandGroup

RUNS_MAX = 20
CONCURRENCY_MAX = 64
INTERRUPTED_CODE = 130


@click.command("evaluate")
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
@click.option(
    "--concurrency",
    metavar="NUMBER",
    type=click.IntRange(1, CONCURRENCY_MAX),
    default=4,
    show_default=True,
    help="How many cases are asked at once.",
)
@click.option("--restart", is_flag=True, help="Start over instead of resuming an interrupted evaluation.")
@json_option
@settings_option
def class_evaluate(settings: Settings, **given: object) -> None:
    """Compare a candidate with what serves a class, on a suite of cases. No account is charged.

    Repeat the command to resume an evaluation that was interrupted or stopped at its budget (exit code 2).
    """
    protect_memory()
    settings.require_complete()
    try:
        budget_nano = parse_dollars(str(given["budget"]))
    except ValueError as error:
        raise ValueError(f"--budget: {error}") from None
    options = msgspec.convert({**given, "budget_nano": budget_nano}, EvaluateOptions)
    try:
        code = with_store(settings, lambda store: run_suite(store, settings, options))
    except KeyboardInterrupt:
        say("\nInterrupted. Repeat the same command to resume: what was answered is not asked again.")
        code = INTERRUPTED_CODE
    if code:
        sys.exit(code)


@click.group("suite", cls=CommandGroup)
def class_suite() -> None:
    """Suites: files of cases with which classes are evaluated."""


@class_suite.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@json_option
def check(file: Path | None, as_json: bool) -> None:
    """Check a suite, and count its cases by tag and by grader. Without FILE: the starter suite."""
    loaded = load_suite(file)
    tags = Counter(tag for case in loaded.cases for tag in case.tags)
    kinds = Counter(str(grader.__struct_config__.tag) for case in loaded.cases for grader in case.graders)
    if as_json:
        counts = {"suite": loaded.name, "digest": loaded.digest.hex(), "cases": len(loaded.cases)}
        print_json([{**counts, "tags": dict(sorted(tags.items())), "graders": dict(sorted(kinds.items()))}])
        return
    click.echo(f"{loaded.name}: {len(loaded.cases)} cases, digest {loaded.digest.hex()[:12]}")
    click.echo("By tag: " + ", ".join(f"{name} {count}" for name, count in sorted(tags.items())))
    click.echo("By grader: " + ", ".join(f"{name} {count}" for name, count in sorted(kinds.items())))
