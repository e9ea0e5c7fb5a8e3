"""cadenza margin, and cadenza reconcile."""

import sys
from collections.abc import Sequence
from functools import reduce
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
from cadenza.control.money.margins import compare_bill, read_margin, read_revenue
from cadenza.control.money.payments import NANO_PER_CENT
from cadenza.core.bills import ComparedDay, Tolerance, add_up, read_bill
from cadenza.core.config_keys import suggest
from cadenza.core.margin import (
    COLUMNS,
    MARGIN_GROUPS,
    REVENUE_COLUMNS,
    MarginGroup,
    MarginSums,
    Revenue,
    add_margins,
)
from cadenza.core.money import format_dollars
from cadenza.core.spans import ALWAYS, parse_dates
from cadenza.store.store import Store

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
    without known costs are counted apart, and are not a part of the margin. By account and by month, what was earned of
    paid and of granted credit and what was refunded are columns.
    """
    span = parse_dates(start, end, month) or ALWAYS

    async def read(store: Store) -> tuple[list[tuple[str, MarginSums]], dict[str, Revenue]]:
        return await read_margin(store, span, group), await read_revenue(store, span, group)

    found, revenue = read_store(settings, read)
    columns: tuple[str, ...] = COLUMNS
    sums_of = dict(found)
    rows = [{group: name or "(unknown)", **sums.shown()} for name, sums in found]
    if group in {"account", "month"}:
        columns = (*COLUMNS, *REVENUE_COLUMNS)
        rows = [
            {group: name, **sums_of.get(name, MarginSums()).shown(), **revenue.get(name, Revenue()).shown()}
            for name in [*sums_of, *(name for name in revenue if name not in sums_of)]
        ]
    if as_json:
        print_json(rows)
        return
    totals, credit = add_margins(sums_of.values()), reduce(Revenue.plus, revenue.values(), Revenue())
    print_table([*rows, {group: "total", **totals.shown(), **credit.shown()}], (group, *columns))
    click.echo(
        f"Charged: {format_dollars(credit.paid_nano)} of paid credit, {format_dollars(credit.granted_nano)} of granted "
        f"credit. Refunds of requests: {format_dollars(credit.refunded_nano)}, of which "
        f"{format_dollars(credit.refunded_granted_nano)} is granted credit."
    )
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
    if provider not in settings.providers:
        raise ValueError(f"no provider is named '{provider}'; {suggest(provider, settings.providers)}")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            bill = read_bill(file)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text in UTF-8: export the bill as CSV.") from None
    tolerance = Tolerance(percent / 100, cents * NANO_PER_CENT)
    found = read_store(settings, lambda store: compare_bill(store, provider, bill, tolerance))
    total = add_up(found, tolerance)
    rows = [line.shown() for line in found]
    if as_json:
        print_json(rows)
    else:
        print_table([*rows, total.shown()], COMPARED)
        _explain(found, total)
    if total.result == "differs":
        say("The bill differs from our counts in a way that nothing explains.")
        sys.exit(1)


def _explain(found: Sequence[ComparedDay], total: ComparedDay) -> None:
    for line in found:
        if line.result != "agrees":
            reasons = "; ".join(line.reasons) or "nothing is known that explains it"
            click.echo(f"{line.place.day} {line.place.model} {line.result}: {reasons}.")
    for reason in total.reasons:
        click.echo(f"All together: {reason}.")
    if any(line.billed.cost_nano is not None and line.ours.unknown_costs for line in found):
        click.echo("Of some lines the cost is not judged: cost_input and cost_output of their routes are not known.")
    if total.result == "differs":
        click.echo("A request around midnight may be billed on the other day: compare the days on both sides of it.")
