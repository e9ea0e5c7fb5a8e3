"""cadenza margin, and cadenza reconcile."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from cadenza.cli.configured import read_store, settings_option
from cadenza.cli.console import (
    from_option,
    json_option,
    month_option,
    print_json,
    print_table,
    say,
    to_option,
)
from cadenza.config import Settings
from cadenza.control.money.margins import compare_bill, read_margin
from cadenza.core.bills import ComparedDay, read_bill
from cadenza.core.config_keys import suggest
from cadenza.core.margin import COLUMNS, MARGIN_GROUPS, MarginGroup, add_margins
from cadenza.core.spans import ALWAYS, parse_dates

COMPARED = (
    *("day", "model", "requests", "billed_requests", "input_tokens", "billed_input_tokens"),
    *("output_tokens", "billed_output_tokens", "cost", "billed_cost", "result"),
)


@click.command()
@click.option("--by", "group", type=click.Choice(MARGIN_GROUPS), default="class", show_default=True, help="The groups.")
@from_option
@to_option
@month_option
@json_option
@settings_option
def margin(
    group: MarginGroup,
    start: str | None,
    end: str | None,
    month: str | None,
    as_json: bool,
    settings: Settings,
) -> None:
    """Show what requests earned, what providers charge for them, and the difference. Months are in UTC.

    The cost of a request comes from cost_input, cost_output and cost_cached of its route when it was served. Requests
    without known costs are counted apart, and are not a part of the margin.
    """
    span = parse_dates(start, end, month) or ALWAYS
    found = read_store(settings, lambda store: read_margin(store, span, group))
    rows = [{group: name or "(unknown)", **sums.shown()} for name, sums in found]
    if as_json:
        print_json(rows)
        return
    totals = add_margins(sums for _, sums in found)
    print_table([*rows, {group: "total", **totals.shown()}], (group, *COLUMNS))
    if totals.unknown_requests:
        click.echo(
            f"Requests whose cost is not known: {totals.unknown_requests}. They are not in the margin. Set cost_input "
            "and cost_output of every route; requests that ended before keep an unknown cost."
        )


@click.command()
@click.option("--provider", metavar="NAME", required=True, help="The provider of the config whose bill it is.")
@click.option(
    "--file",
    "path",
    metavar="FILE",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The bill, as CSV with a header.",
)
@json_option
@settings_option
def reconcile(provider: str, path: Path, as_json: bool, settings: Settings) -> None:
    """Compare the bill of a provider with our own counts, by day and model. Exit 1 if a difference is not explained.

    The bill has a column for the day and one for the model, and requests, input_tokens, output_tokens or cost. The
    exports of OpenAI, Anthropic and OpenRouter can be read as they are. Days are in UTC.
    """
    if provider not in settings.providers:
        raise ValueError(f"no provider is named '{provider}'; {suggest(provider, settings.providers)}")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            bill = read_bill(file)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text in UTF-8: export the bill as CSV.") from None
    found = read_store(settings, lambda store: compare_bill(store, provider, bill))
    rows = [line.shown() for line in found]
    if as_json:
        print_json(rows)
    else:
        print_table(rows, COMPARED)
        _explain(found)
    if any(line.result == "differs" for line in found):
        say("The bill differs from our counts in a way that nothing explains.")
        sys.exit(1)


def _explain(found: Sequence[ComparedDay]) -> None:
    for line in found:
        if line.result != "agrees":
            reasons = "; ".join(line.reasons) or "nothing is known that explains it"
            click.echo(f"{line.place.day} {line.place.model} {line.result}: {reasons}.")
    if any(line.result == "differs" for line in found):
        click.echo("A request around midnight may be billed on the other day: compare the days on both sides of it.")
