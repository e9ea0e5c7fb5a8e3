"""cadenza class watch: one watch of a class, now."""

import io
import sys

import click
import msgspec

from cadenza.cli.evaluation_run import running
from cadenza.config import Settings
from cadenza.config.classes import resolve_classes, served_version, watched_class
from cadenza.core.attempts import WATCH
from cadenza.core.errors import ControlError
from cadenza.core.money import format_dollars
from cadenza.core.records import COMMAND_LINE
from cadenza.evaluation.watch import WatchDone, Watches
from cadenza.evaluation.watched_model import UpstreamModel
from cadenza.observe import make_log
from cadenza.process import protect_memory
from cadenza.store.store import Store
from cadenza.terminal.configured import settings_option, with_store
from cadenza.terminal.console import json_option, print_json, say

DRIFT_EXIT = 2


@click.command()
@click.argument("class_id", metavar="CLASS")
@click.option("--new-reference", is_flag=True, help="Accept what it finds: later watches are compared with this one.")
@json_option
@settings_option
def watch(class_id: str, new_reference: bool, as_json: bool, settings: Settings) -> None:
    """Ask the cheap cases of the class's suite now, and compare the answers with the first watch's.

    The exit code is 2 if something has drifted. The budget is that of the config.
    """
    protect_memory()
    settings.require_complete()
    done = with_store(settings, lambda store: _watch(store, settings, class_id, as_reference=new_reference))
    if as_json:
        result = msgspec.to_builtins(done.result)
        row = {"id": done.record.id, "state": done.record.state, "reason": done.reason, "result": result}
        row["finding"] = done.result.finding if done.result else None
        print_json([{**row, "spent_nano": done.record.spent_nano, "version": done.record.incumbent}])
    else:
        _print(done)
    if done.result is None:
        sys.exit(1)
    if done.result.drifts:
        sys.exit(DRIFT_EXIT)


async def _watch(store: Store, settings: Settings, class_id: str, *, as_reference: bool) -> WatchDone:
    version = served_version(await resolve_classes(store, settings), class_id)
    async with running(store, settings, version.main_routes, WATCH) as upstreams:
        watches = Watches(store, UpstreamModel(lambda: upstreams), make_log(io.StringIO()))
        done = await watches.watch(watched_class(settings, version), actor=COMMAND_LINE, as_reference=as_reference)
    if done is None:
        raise ControlError(f"Another process is watching {class_id}, or its version was replaced just now. Try again.")
    return done


def _print(done: WatchDone) -> None:
    record, result = done.record, done.result
    head = f"{record.class_id}, version {record.incumbent}, suite {record.suite}"
    if result is None:
        say(f"The watch of {head} was stopped: {done.reason}.")
        return
    found = result.summary
    first = "–" if found.first_p50_ms is None else f"{found.first_p50_ms:.0f} ms"
    click.echo(
        f"{head}: score {found.score:.3f}, {found.passes} of {done.cases} passed, {found.faults} without an answer"
    )
    spent = format_dollars(record.spent_nano)
    click.echo(f"first token {first} (median), {found.tokens:.0f} tokens an answer, {spent} dollars")
    for check in found.conformance:
        if check.state != "ok":
            click.echo(f"conformance: {check.name}: {check.state}")
    if result.reference_id is None:
        click.echo("Later watches of this version are compared with this one.")
    elif result.finding == "steady":
        click.echo(f"No sign of drift. The score against the reference: {result.comparison}.")
    drifted = {one.measure for one in result.drifts}
    for drift in result.drifts:
        click.secho(f"drift of {drift.measure}: {drift.detail}", bold=True)
    if "score" in result.suspected:
        click.secho(f"suspect: score: {result.comparison}. It is drift if the next watches find the same.", bold=True)
    if "latency" in result.suspected and "latency" not in drifted:
        click.echo("suspect: latency: the first tokens come late. It is drift if the next watch finds the same.")
