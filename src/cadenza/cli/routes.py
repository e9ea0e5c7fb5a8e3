"""cadenza route list | rest | resume."""

import click

from cadenza.cli.classes import read_states
from cadenza.config import Settings
from cadenza.control.route_rests import rest_route, resume_route
from cadenza.core.formats import rfc3339, rfc3339_or_none
from cadenza.core.records import COMMAND_LINE
from cadenza.core.spans import parse_duration_ms
from cadenza.store.tables.route_rests import list_since
from cadenza.terminal.configured import read_store, settings_option, with_store
from cadenza.terminal.console import json_option, now_ms, print_list, say
from cadenza.terminal.lazy import CommandGroup

COLUMNS = ("route", "classes", "rests_until", "by")
route_argument = click.argument("route", metavar="PROVIDER/MODEL")


@click.group(cls=CommandGroup)
def routes() -> None:
    """Routes: list them, or keep requests from one for some time."""


@routes.command("list")
@json_option
@settings_option
def list_(as_json: bool, settings: Settings) -> None:
    """List the routes of all classes, and until when an operator keeps requests from them."""
    classes = _classes_by_route(settings)
    rests = {one.route: one for one in read_store(settings, lambda store: list_since(store, now_ms()))}
    rows = list[dict[str, object]]()
    for route, used_by in classes.items():
        rest = rests.get(route)
        until = rfc3339_or_none(rest.until_at if rest else None)
        rows.append({"route": route, "classes": used_by, "rests_until": until, "by": rest.actor if rest else None})
    print_list(rows, COLUMNS, as_json=as_json)


@routes.command()
@route_argument
@click.argument("time", metavar="TIME")
@settings_option
def rest(route: str, time: str, settings: Settings) -> None:
    """Send no requests to a model of a provider for some time, like 90s, 10m or 2h, and at most 24 hours.

    This holds in every process, for all classes that use the model, also after a restart. Requests in flight continue.
    The other routes of a class serve its requests; if all its routes rest, they get the error of a class that is down.
    """
    rest_ms, names = parse_duration_ms(time), _classes_by_route(settings)
    done = with_store(settings, lambda store: rest_route(store, route, rest_ms, names, COMMAND_LINE, now_ms()))
    say(f"{route} rests until {rfc3339(done.until_at)}. To end that now: cadenza route resume {route}")


@routes.command()
@route_argument
@settings_option
def resume(route: str, settings: Settings) -> None:
    """End the rest of a route now."""
    with_store(settings, lambda store: resume_route(store, route, COMMAND_LINE, now_ms()))
    say(f"{route} gets requests again.")


def _classes_by_route(settings: Settings) -> dict[str, list[str]]:
    """The routes of all classes, each PROVIDER/MODEL."""
    found = dict[str, list[str]]()
    for class_id, state in read_states(settings).items():
        for route in dict.fromkeys(route.name for route in state.version.routes):
            found.setdefault(route, []).append(class_id)
    return found
