"""cadenza audit list."""

import click

from cadenza.config import Settings
from cadenza.control.audit_log import list_audit_events
from cadenza.terminal.configured import read_store, settings_option
from cadenza.terminal.console import json_option, print_list, to_row
from cadenza.terminal.lazy import LazyGroup

EVENT_COLUMNS = ("at", "actor", "event", "account", "subject", "detail", "token")
EVENTS_MAX = 10_000


@click.group(cls=LazyGroup, places={}, words="audit")
def audit() -> None:
    """The audit log, which says who did what to whom."""


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
@settings_option
def list_events(account: str | None, count: int, as_json: bool, settings: Settings) -> None:
    """List who did what to whom, and when: the newest events, oldest first."""
    found = read_store(settings, lambda store: list_audit_events(store, account, count=count))
    rows = [
        {
            **to_row(event, "id", "at", "actor", "event"),
            "account": event.email,
            **to_row(event, "subject", "detail", "token"),
        }
        for event in reversed(found)
    ]
    print_list(rows, EVENT_COLUMNS, as_json=as_json)
