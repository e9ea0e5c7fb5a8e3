"""cadenza token create | list | revoke."""

import click

from cadenza.config import Settings
from cadenza.core.formats import rfc3339
from cadenza.core.records import COMMAND_LINE
from cadenza.parts.site.tokens import TokenOrder, create_token, list_tokens, revoke_token
from cadenza.terminal.configured import read_owner, settings_option, with_owner, with_store
from cadenza.terminal.console import json_option, now_ms, print_list, say, to_row
from cadenza.terminal.lazy import CommandGroup
from cadenza.terminal.orders import order_options

FIELDS = ("id", "name", "prefix", "scopes", "state", "created_at", "expires_at", "last_used_at")

account_option = click.option("--account", metavar="EMAIL", required=True, help="The account that owns the token.")


@click.group(cls=CommandGroup)
def tokens() -> None:
    """Access tokens, with which scripts use the platform API."""


@tokens.command()
@account_option
@order_options(TokenOrder)
@settings_option
def create(account: str, order: TokenOrder, settings: Settings) -> None:
    """Create a token and print it, alone on standard output. It is shown only this once."""
    secret, token = with_owner(settings, account, lambda store, owner: create_token(store, owner, order, now_ms()))
    click.echo(secret)
    say(f"This token is shown once; only its hash is stored. It expires at {rfc3339(token.expires_at)}.")
    say(f"Scopes: {', '.join(token.scopes)}. To revoke it: cadenza token revoke {token.id}")


@tokens.command("list")
@account_option
@json_option
@settings_option
def list_(account: str, as_json: bool, settings: Settings) -> None:
    """List the tokens of an account, with their last use."""
    views = read_owner(settings, account, lambda store, owner: list_tokens(store, owner, now_ms()))
    print_list([to_row(token, *FIELDS) for token in reversed(views)], FIELDS, as_json=as_json)


@tokens.command()
@click.argument("token", metavar="PREFIX_OR_ID")
@settings_option
def revoke(token: str, settings: Settings) -> None:
    """Revoke a token. It stops working at once. Name it by its id, its first 12 characters or itself."""
    revoked = with_store(settings, lambda store: revoke_token(store, COMMAND_LINE, token, now_ms()))
    say(f"The token {revoked.prefix}… ({revoked.id}) is revoked.")
