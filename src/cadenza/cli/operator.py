"""cadenza classes list | price | reload, and cadenza audit list."""

import click

from cadenza.cli.console import config_option, json_option, load_config, print_list, read_store, say, to_row, with_store
from cadenza.cli.prices import price

ROUTE_COLUMNS = ("class", "order", "weight", "provider", "model", "context_tokens", "max_output_tokens", "continue")
EVENT_COLUMNS = ("at", "actor", "act", "account", "subject", "detail")
EVENTS_MAX = 10_000


@click.group()
def classes() -> None:
    """Classes and their routes."""


@classes.command("list")
@json_option
@config_option
def list_routes(as_json: bool, config: str | None) -> None:
    """List the routes of every class, in the order in which they are tried."""
    rows = [
        {
            "class": class_id,
            **to_row(route, "order", "weight", "provider", "model", "context_tokens", "max_output_tokens"),
            "continue": route.continues,
        }
        for class_id, one in load_config(config).classes.items()
        for route in one.routes
    ]
    print_list(rows, ROUTE_COLUMNS, as_json=as_json)


@classes.command()
@config_option
def reload(config: str | None) -> None:
    """Make running servers reload classes, routes, providers, prices, limits and grounding. No stream is dropped."""
    from cadenza.control.operator import announce_reload  # noqa: PLC0415 import time

    settings = load_config(config)
    settings.require_secrets()
    with_store(settings, announce_reload)
    say("Every server on this store reloads its config before its next request. Its log shows any mistakes.")


classes.add_command(price)


@click.group()
def audit() -> None:
    """The audit log: who did what to whom, and when."""


@audit.command("list")
@click.option("--account", metavar="EMAIL", help="Only what concerns this account.")
@click.option(
    "--count",
    metavar="NUMBER",
    type=click.IntRange(1, EVENTS_MAX),
    default=100,
    show_default=True,
    help="How many of the newest events.",
)
@json_option
@config_option
def list_events(account: str | None, count: int, as_json: bool, config: str | None) -> None:
    """List who did what to whom, and when: the newest events, oldest first."""
    from cadenza.control.operator import list_audit_events  # noqa: PLC0415 import time

    found = read_store(load_config(config), lambda store: list_audit_events(store, account, count=count))
    rows = [
        {
            **to_row(event, "id", "at", "actor"),
            "act": event.event,
            "account": event.email,
            **to_row(event, "subject", "detail"),
        }
        for event in reversed(found)
    ]
    print_list(rows, EVENT_COLUMNS, as_json=as_json)
