"""cadenza class evaluate: compare a candidate with what serves a class, before it may replace it."""

import sys
from pathlib import Path

import click
import msgspec

from cadenza.cli.evaluation_run import EvaluateOptions, run_suite
from cadenza.config import Settings
from cadenza.core.money import parse_dollars
from cadenza.process import protect_memory
from cadenza.terminal.configured import settings_option, with_store
from cadenza.terminal.console import json_option, say

RUNS_MAX = 20
CONCURRENCY_MAX = 64
INTERRUPTED_CODE = 130


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
def evaluate(settings: Settings, **given: object) -> None:
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
