"""cadenza explain and cadenza tail: what happened to a request, and what happens now."""

import click
import msgspec

from cadenza.cli.request_output import follow_requests, print_request
from cadenza.config import Settings
from cadenza.control.requests import explain as explain_requests
from cadenza.control.requests import parse_filter
from cadenza.terminal.configured import read_store, settings_option
from cadenza.terminal.console import json_option, now_ms, print_json

LAST_MAX = 1_000


@click.command()
@click.argument("request_id", metavar="REQUEST_OR_COMPLETION_ID")
@json_option
@settings_option
def explain(request_id: str, as_json: bool, settings: Settings) -> None:
    """Show everything that is known of one request, in order.

    The id is the x-request-id of the reply, or the id of the completion. Message content is not known: none is stored.
    """
    found = read_store(settings, lambda store: explain_requests(store, request_id, now_ms()))
    if as_json:
        print_json([msgspec.to_builtins(one) for one in found])
        return
    for number, one in enumerate(found):
        if number:
            click.echo()
        print_request(one)


@click.command()
@click.option("--account", metavar="EMAIL", default="", help="Only requests of this account.")
@click.option("--key", metavar="PREFIX_OR_ID", default="", help="Only requests with this key.")
@click.option("--class", "class_id", metavar="CLASS", default="", help="Only requests to this class.")
@click.option("--status", metavar="STATUS", default="", help="Only these statuses: 200, 429, 5xx, or 429,5xx.")
@click.option("--slow", metavar="TIME", default="", help="Only requests that took this long: 2s, 500ms.")
@click.option(
    "--last",
    metavar="NUMBER",
    type=click.IntRange(0, LAST_MAX),
    default=10,
    show_default=True,
    help="How many of the requests before now are shown first.",
)
@click.option("--once", is_flag=True, help="Show those, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object on each line.")
@settings_option
def tail(  # noqa: PLR0913, PLR0917 one command
    account: str,
    key: str,
    class_id: str,
    status: str,
    slow: str,
    last: int,
    once: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Follow the requests of all processes on the store as they end, until Ctrl-C.

    A request is shown once the store has it: a served one with its charge, any other one within a second. Of many
    alike that were refused, a few are shown. Requests without a valid key are in the log only.
    """
    wanted = parse_filter(account, key, class_id, status, slow)
    follow_requests(settings, wanted, last, follows=not once, as_json=as_json)
