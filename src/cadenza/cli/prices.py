"""cadenza class price: list the prices of classes, announce a change, or withdraw one."""

import click

from cadenza.config import Settings
from cadenza.control.price_changes import (
    PriceOrder,
    cancel_change,
    change_price,
    check_class,
    parse_date,
    read_schedules,
)
from cadenza.core.formats import rfc3339, rfc3339_or_none
from cadenza.core.money import Price, parse_price
from cadenza.core.price_schedules import PriceSchedule, describe_price, show_price
from cadenza.core.records import COMMAND_LINE
from cadenza.terminal.configured import read_store, settings_option, with_store
from cadenza.terminal.console import json_option, now_ms, print_list, say, to_row

COLUMNS = ("class", "state", "from", "input", "output", "cached_input")
NONE = "none"


@click.command()
@click.argument("class_id", metavar="[CLASS]", required=False)
@click.option("--input", "input_", metavar="DOLLARS", help="For a million tokens of input.")
@click.option("--output", metavar="DOLLARS", help="For a million tokens of output.")
@click.option(
    "--cached-input", metavar="DOLLARS", help="For a million cached tokens of input; or none: as other input."
)
@click.option("--from", "from_", metavar="DATE", help="When it takes effect, like 2026-12-01 or 2026-12-01T08:00:00Z.")
@click.option("--cancel", metavar="DATE", help="Withdraw the change of this date.")
@json_option
@settings_option
def price(  # noqa: PLR0913, PLR0917 one for each option
    class_id: str | None,
    input_: str | None,
    output: str | None,
    cached_input: str | None,
    from_: str | None,
    cancel: str | None,
    as_json: bool,
    settings: Settings,
) -> None:
    """List prices and their changes to come; or change the price of CLASS from a date on.

    Dates are UTC unless they name a zone. Users see a change beforehand, on the pages and in /v1/models. A request is
    charged by the price of the moment in which its credit is held.
    """
    given = {"--input": input_, "--output": output, "--from": from_}
    if cancel is not None:
        if class_id is None or cached_input is not None or any(given.values()):
            raise ValueError("--cancel takes a CLASS and no other option but --config")
        _cancel(class_id, cancel, settings)
    elif cached_input is not None or any(given.values()):
        if missing := [name for name, value in given.items() if value is None]:
            raise ValueError(f"a change of price also needs {' and '.join(missing)}")
        if class_id is None:
            raise ValueError("a change of price needs a CLASS")
        cached = None if cached_input in (None, NONE) else parse_price(str(cached_input))
        new = Price(parse_price(str(input_)), parse_price(str(output)), cached)
        order = PriceOrder(class_id, parse_date(str(from_)), new, drops_cached=cached_input == NONE)
        with_store(settings, lambda store: change_price(store, order, settings.prices, COMMAND_LINE, now_ms()))
        say(f"{class_id} costs {describe_price(new)} from {rfc3339(order.from_at)} (UTC) on. It is shown until then.")
    else:
        _list(class_id, settings, as_json=as_json)


def _cancel(class_id: str, date: str, settings: Settings) -> None:
    from_at = parse_date(date)
    with_store(settings, lambda store: cancel_change(store, class_id, from_at, COMMAND_LINE, now_ms()))
    say(f"The change of the price of {class_id} from {rfc3339(from_at)} (UTC) is withdrawn.")


def _list(class_id: str | None, settings: Settings, *, as_json: bool) -> None:
    if class_id is not None:
        check_class(class_id, settings.prices)
    found = read_store(settings, lambda store: read_schedules(store, settings.prices, now_ms()))
    shown = found if class_id is None else {class_id: found[class_id]}
    rows = [row for id_, schedule in shown.items() for row in _rows(id_, schedule)]
    print_list(rows, COLUMNS, as_json=as_json)


def _rows(class_id: str, schedule: PriceSchedule) -> list[dict[str, object]]:
    """What is in effect now, which comes from the config if it has no date, and what comes."""
    dated = [("now", schedule.since_at, schedule.first)]
    dated += [("to come", change.from_at, change.price) for change in schedule.changes]
    return [
        {"class": class_id, "state": state, "from": rfc3339_or_none(at), **to_row(show_price(price), *COLUMNS[3:])}
        for state, at, price in dated
    ]
