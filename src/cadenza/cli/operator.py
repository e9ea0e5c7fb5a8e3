"""cadenza audit list. The other command of the group is in audit.py."""

import click

from cadenza.cli.console import config_option, json_option, load_config, print_list, read_store, to_row

EVENT_COLUMNS = ("at", "actor", "act", "account", "subject", "detail", "token")
EVENTS_MAX = 10_000


@click.group()
def audit() -> None:
    """The audit log, which says who did what to whom, and the audit of retention."""


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
            **to_row(event, "subject", "detail", "token"),
        }
        for event in reversed(found)
    ]
    print_list(rows, EVENT_COLUMNS, as_json=as_json)
