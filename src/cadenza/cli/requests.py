"""cadenza explain and cadenza tail: what happened to a request, and what happens now."""

import click

from cadenza.cli.console import config_option, json_option, load_config, now_ms, print_json, read_store


@click.command()
@click.argument("request_id", metavar="REQUEST_OR_COMPLETION_ID")
@json_option
@config_option
def explain(request_id: str, as_json: bool, config: str | None) -> None:
    """Show everything that is known of one request, in order.

    The id is the x-request-id of the reply, or the id of the completion. Message content is not known: none is stored.
    """
    import msgspec  # noqa: PLC0415 import time

    from cadenza.cli.request_output import print_request  # noqa: PLC0415 import time
    from cadenza.control.requests import explain as explain_requests  # noqa: PLC0415 import time

    found = read_store(load_config(config), lambda store: explain_requests(store, request_id, now_ms()))
    if as_json:
        print_json([msgspec.to_builtins(one) for one in found])
        return
    for number, one in enumerate(found):
        if number:
            click.echo()
        print_request(one)
