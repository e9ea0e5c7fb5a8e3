"""cadenza audit list."""

import click

from cadenza.cli.console import config_option, json_option, load_config, print_list, read_store
from cadenza.core.formats import rfc3339_or_none

COLUMNS = ("at", "actor", "act", "account", "subject", "detail")
COUNT_MAX = 10_000


@click.group()
def audit() -> None:
    """The audit log."""


@audit.command("list")
@click.option("--account", metavar="EMAIL", help="Only what concerns this account.")
@click.option(
    "--count",
    metavar="NUMBER",
    type=click.IntRange(1, COUNT_MAX),
    default=100,
    show_default=True,
    help="How many of the newest events.",
)
@json_option
@config_option
def list_(account: str | None, count: int, as_json: bool, config: str | None) -> None:
    """List who did what to whom, and when: the newest events, oldest first."""
    from cadenza.control.operator import list_audit_events  # noqa: PLC0415 import time

    found = read_store(load_config(config), lambda store: list_audit_events(store, account, count=count))
    rows = [
        {
            "id": event.id,
            "at": rfc3339_or_none(event.at),
            "actor": event.actor,
            "act": event.event,
            "account": event.email,
            "subject": event.subject,
            "detail": event.detail,
        }
        for event in reversed(found)
    ]
    print_list(rows, COLUMNS, as_json=as_json)
