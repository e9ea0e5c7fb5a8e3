"""cadenza margin, and cadenza reconcile."""

import sys
from pathlib import Path

import click

from cadenza.config import Settings
from cadenza.core.money import NANO_PER_CENT
from cadenza.core.spans import ALWAYS, parse_dates
from cadenza.parts.books.bills import COMPARED, Tolerance
from cadenza.parts.books.margin import MARGIN_GROUPS, MarginGroup
from cadenza.parts.books.margins import reconcile as reconcile_bill
from cadenza.parts.books.margins import report_margin
from cadenza.terminal.configured import read_store, settings_option
from cadenza.terminal.console import from_option, json_option, month_option, print_json, print_table, say, to_option


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
    without known costs are counted apart, and are not a part of the margin. By account and by month, what was earned of
    paid and of granted credit and what was refunded are columns.
    """
    span = parse_dates(start, end, month) or ALWAYS
    found = read_store(settings, lambda store: report_margin(store, span, group))
    if as_json:
        print_json([found.shown(row) for row in found.rows])
        return
    print_table([found.shown(row) for row in (*found.rows, found.total_row)], found.columns)
    for sentence in found.sentences():
        click.echo(sentence)


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
@click.option(
    "--percent",
    type=click.FloatRange(0, 100),
    default=0.5,
    show_default=True,
    help="How far the cost of a line, and of all, may be off.",
)
@click.option("--cents", type=click.IntRange(0), default=1, show_default=True, help="The same, besides, for rounding.")
@json_option
@settings_option
def reconcile(provider: str, path: Path, percent: float, cents: int, as_json: bool, settings: Settings) -> None:
    """Compare the bill of a provider with our own counts, by day and model. Exit 1 if a difference is not explained.

    The bill has a column for the day and one for the model, and requests, input_tokens or output_tokens, and maybe
    cost. The exports of OpenAI, Anthropic and OpenRouter can be read as they are. Days are in UTC.
    """
    tolerance = Tolerance(percent / 100, cents * NANO_PER_CENT)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            found = read_store(
                settings, lambda store: reconcile_bill(store, provider, settings.providers, file, tolerance)
            )
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text in UTF-8: export the bill as CSV.") from None
    if as_json:
        print_json([line.shown() for line in found.lines])
    else:
        print_table([line.shown() for line in (*found.lines, found.total)], COMPARED)
        for sentence in found.sentences():
            click.echo(sentence)
    if found.total.result == "differs":
        say("The bill differs from our counts in a way that nothing explains.")
        sys.exit(1)
