"""cadenza class show | history | diff | adopt | promote | rollback | reload."""

import click

from cadenza.config import Settings
from cadenza.config.class_records import class_rules, find_candidate
from cadenza.control import class_changes as control
from cadenza.control.class_diff import RouteChange, VersionDiff, compare_versions
from cadenza.control.class_versions import announce_reload, read_served, unrecorded
from cadenza.core.classes import ClassState, ClassVersion
from cadenza.core.formats import rfc3339
from cadenza.core.records import COMMAND_LINE, Route
from cadenza.store.address import open_store
from cadenza.terminal.configured import read_store, settings_option, with_store
from cadenza.terminal.console import json_option, now_ms, print_json, print_list, print_table, say, to_row
from cadenza.terminal.lazy import LazyGroup

ROUTE_FIELDS = ("order", "weight", "provider", "model", "context_tokens", "max_output_tokens")
ROUTE_COLUMNS = (*ROUTE_FIELDS, "continue")
LIST_COLUMNS = ("class", "version", *ROUTE_COLUMNS)
HISTORY_COLUMNS = ("at", "actor", "event", "detail")
CHARACTER_CHARS_SHOWN = 100
EVENTS_SHOWN = 50
COLORS = {"+": "green", "-": "red"}  # of lines of a diff

class_argument = click.argument("class_id", metavar="CLASS")


PRICE = ("prices.price", "List prices and their changes to come; or change the price of CLASS from a date on.")


@click.group(cls=LazyGroup, places={"price": PRICE}, words="class")
def classes() -> None:
    """Classes: what serves them, and its replacement after evaluation."""


@classes.command()
@click.argument("class_id", metavar="[CLASS]", required=False)
@json_option
@settings_option
def show(class_id: str | None, as_json: bool, settings: Settings) -> None:
    """Show what serves a class now: its version and routes, the newest verdict, and what to do next.

    Without CLASS, list the routes that serve every class, in the order in which they are tried.
    """
    if class_id is None:
        versions = [state.version for state in read_states(settings).values()]
        rows = [
            {"class": version.class_id, "version": version.number or None, **_route_row(route)}
            for version in versions
            for route in version.routes
        ]
        print_list(rows, LIST_COLUMNS, as_json=as_json)
        return
    rules = class_rules(settings, class_id)
    found = read_store(settings, lambda store: control.get_situation(store, class_id, rules))
    if as_json:
        print_json([_situation_row(found)])
    else:
        _print_situation(found)


@classes.command()
@class_argument
@json_option
@settings_option
def history(class_id: str, as_json: bool, settings: Settings) -> None:
    """List the newest 50 changes of a class with their reasons, oldest first: who did what, and when."""
    found = read_store(settings, lambda store: control.list_history(store, class_id, EVENTS_SHOWN))
    print_list([to_row(entry, *HISTORY_COLUMNS) for entry in reversed(found)], HISTORY_COLUMNS, as_json=as_json)


@classes.command()
@class_argument
@click.argument("before", metavar="[FROM]", type=int, required=False)
@click.argument("after", metavar="[TO]", type=int, required=False)
@json_option
@settings_option
def diff(class_id: str, before: int | None, after: int | None, as_json: bool, settings: Settings) -> None:
    """Show what differs between two versions of a class.

    Without versions: between the one that was served before and the one that is served.
    """
    old, new = read_store(settings, lambda store: control.get_pair(store, class_id, before, after))
    found = compare_versions(old, new)
    if as_json:
        print_json([{"class": class_id, **to_row(found, "before", "after", "routes", "character")}])
    else:
        _print_diff(found)


@classes.command()
@class_argument
@click.option("--undo", is_flag=True, help="Let the config decide again.")
@settings_option
def adopt(class_id: str, undo: bool, settings: Settings) -> None:
    """Hand a class over from the config to the store: its routes in the config no longer take effect."""
    rules, act = class_rules(settings, class_id), control.hand_back if undo else control.adopt
    state = with_store(settings, lambda store: act(store, class_id, rules, COMMAND_LINE, now_ms()))
    if undo:
        say(f"'{class_id}' is served by the routes of the config again.")
    else:
        say(f"'{class_id}' is adopted: version {state.version.number} is served until you promote or roll back.")


@classes.command()
@class_argument
@click.option("--candidate", metavar="PROVIDER/MODEL", required=True, help="The model to promote, as it was evaluated.")
@click.option("--force", is_flag=True, help="Skip the gate. Needs --reason, and stays visible in the history.")
@click.option("--reason", metavar="TEXT", default="", help="Why the gate is skipped.")
@settings_option
def promote(class_id: str, candidate: str, force: bool, reason: str, settings: Settings) -> None:
    """Replace the main routes of a class by a candidate that has passed the gate. Prices and fallbacks stay."""
    if reason and not force:
        raise ValueError("--reason belongs to --force: the reason of a gated promotion is its verdict")
    settings.require_complete()
    rules, route = class_rules(settings, class_id), find_candidate(settings, class_id, candidate)
    order = control.PromotionOrder(candidate=route, forced=reason if force else None)
    state = with_store(settings, lambda store: control.promote(store, class_id, rules, order, COMMAND_LINE, now_ms()))
    say(
        f"Version {state.version.number} of '{class_id}' is served. "
        f"To return to version {state.previous}: cadenza class rollback {class_id}"
    )


@classes.command()
@class_argument
@click.option("--to", metavar="NUMBER", type=click.IntRange(1), help="The version to serve, if not the one before.")
@click.option("--reason", metavar="TEXT", default="", help="Why, for the history.")
@settings_option
def rollback(class_id: str, to: int | None, reason: str, settings: Settings) -> None:
    """Serve an earlier version of a class again."""
    rules, order = class_rules(settings, class_id), control.RollbackOrder(to=to, reason=reason)
    state = with_store(settings, lambda store: control.roll_back(store, class_id, rules, order, COMMAND_LINE, now_ms()))
    say(f"Version {state.version.number} of '{class_id}' is served.")


@classes.command()
@settings_option
def reload(settings: Settings) -> None:
    """Make running servers reload classes, routes, providers, prices, limits and grounding. No stream is dropped."""
    settings.require_complete()
    with_store(settings, announce_reload)
    say("Every server on this store reloads its config before its next request. Its log shows any mistakes.")


def read_states(settings: Settings) -> dict[str, ClassState]:
    """What is served, by class. Without a store, nothing is recorded yet: then the config says it."""
    configured, path = settings.configured_classes(), open_store(settings.store.url).path
    if path is not None and not path.exists():
        say("There is no store yet: these are the routes of the config.")
        return unrecorded(configured)
    return read_store(settings, lambda store: read_served(store, configured))


def _route_row(route: Route) -> dict[str, object]:
    return {**to_row(route, *ROUTE_FIELDS), "continue": route.continues}


def _version_row(version: ClassVersion) -> dict[str, object]:
    fields = to_row(version, "number", "origin", "created_at", "actor", "verdict_id", "character")
    return {**fields, "routes": [_route_row(route) for route in version.routes]}


def _situation_row(found: control.ClassSituation) -> dict[str, object]:
    state = found.state
    return {
        "class": state.version.class_id,
        "version": _version_row(state.version),
        "previous": state.previous,
        **to_row(state, "changed_at", "is_adopted"),
        "pin": found.pin or None,
        "verdict": found.judgement.record,
        "next_step": found.next_step,
    }


def _print_situation(found: control.ClassSituation) -> None:
    version = found.state.version
    click.secho(f"{version.class_id}: version {version.number}", bold=True, nl=False)
    click.echo(f", recorded {rfc3339(version.created_at)} by {version.actor}")
    by_store = "the built-in default, until a candidate is promoted" if found.is_built_in else "the store"
    decides = f"the config ({found.pin})" if found.pin else by_store
    click.echo(f"decided by  {decides}")
    character = version.character.replace("\n", " ")
    more = "…" if len(character) > CHARACTER_CHARS_SHOWN else ""
    click.echo(f"character   {character[:CHARACTER_CHARS_SHOWN]}{more}")
    if found.judgement.verdict:
        click.echo(f"verdict     {found.judgement.verdict}")
    click.echo(f"next        {found.next_step}\n")
    print_table([_route_row(route) for route in version.routes], ROUTE_COLUMNS)


def _print_diff(found: VersionDiff) -> None:
    if found.before == found.after:
        click.echo(f"Name two versions: cadenza class diff {found.class_id} FROM TO")
        return
    click.secho(f"{found.class_id}: version {found.before} -> {found.after}", bold=True)
    if not found.routes and not found.character:
        click.echo("The same routes and the same character.")
    for change in found.routes:
        _print_route_change(change)
    if found.character:
        click.echo("  character")
        for line in found.character:
            click.secho(f"    {line}", fg=COLORS.get(line[:1]))


def _print_route_change(change: RouteChange) -> None:
    sign = {"added": "+", "removed": "-", "changed": "~"}[change.change]
    click.secho(f"{sign} route {change.route}", fg=COLORS.get(sign))
    for field in change.fields:
        values = [value for value in (field.before, field.after) if value is not None]
        click.echo(f"    {field.name}: {' -> '.join(values)}")
