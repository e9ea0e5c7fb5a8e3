"""cadenza account create | operator | password | link, and cadenza token create | list | revoke."""

import sys
from typing import Literal

import click

from cadenza.config import Settings
from cadenza.core.formats import rfc3339
from cadenza.core.records import COMMAND_LINE
from cadenza.parts.site.accounts import remove_second_factors, set_operator, set_password
from cadenza.parts.site.settings import PlatformSettings
from cadenza.parts.site.sign_in.links import make_operator_link, print_link
from cadenza.parts.site.sign_in.passwords import hash_password
from cadenza.parts.site.sign_in.sign_up import invite
from cadenza.parts.site.tables.access_tokens import Token
from cadenza.parts.site.tables.links import LinkKind
from cadenza.parts.site.tokens import TokenOrder, create_token, list_tokens, revoke_token
from cadenza.terminal.configured import read_owner, settings_option, with_owner, with_store
from cadenza.terminal.console import ask, json_option, now_ms, print_list, say, to_row
from cadenza.terminal.lazy import CommandGroup
from cadenza.terminal.new_account import create, create_options
from cadenza.terminal.orders import order_options

FIELDS = [name for name in Token.__struct_fields__ if name not in {"account_id", "revoked_at"}]
LINKS = {"reset": "an hour", "verify": "3 days", "invite": "7 days", "operator": "24 hours"}  # how long they work

email_argument = click.argument("email")
password_option = click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
account_option = click.option("--account", metavar="EMAIL", required=True, help="The account that owns the token.")


@click.command("create")
@create_options
@password_option
def account_create(
    email: str, credit: str, preferred_class: str | None, password_stdin: bool, reference: str, settings: Settings
) -> None:
    """Create an account. The password is read from a prompt."""

    def make_hash() -> str:
        return hash_password(_read_password(from_stdin=password_stdin), email)

    create(settings, email, credit, preferred_class, reference, make_hash)


@click.command("operator")
@email_argument
@click.option("--remove", is_flag=True, help="Make it an ordinary account again.")
@settings_option
def account_operator(email: str, remove: bool, settings: Settings) -> None:
    """Make an account an operator's. It sees the operator pages of the web application."""
    account = with_store(
        settings, lambda store: set_operator(store, email, COMMAND_LINE, now_ms(), is_operator=not remove)
    )
    say(f"{account.email} is {'an ordinary account' if remove else 'an operator'} now.")


@click.command("password")
@email_argument
@password_option
@click.option(
    "--remove-second-factor",
    is_flag=True,
    help="Keep the password, and remove authenticator app, passkeys and recovery codes instead.",
)
@settings_option
def account_password(email: str, password_stdin: bool, remove_second_factor: bool, settings: Settings) -> None:
    """Set the password of an account. Every browser is signed out of it, and its access tokens are revoked."""
    if remove_second_factor:
        account = with_store(settings, lambda store: remove_second_factors(store, email, COMMAND_LINE, now_ms()))
        say(f"{account.email} signs in with its password alone now.")
        return
    given = _read_password(from_stdin=password_stdin)
    done = with_store(settings, lambda store: set_password(store, email, given, COMMAND_LINE, now_ms()))
    say(f"The password of {done.account.email} is set, and every browser is signed out of it.")
    if done.consequences:
        say(done.consequences)


@click.command("link")
@click.argument("kind", type=click.Choice(list(LINKS)))
@click.argument("email", default="")
@settings_option
def account_link(kind: Literal[LinkKind, "operator"], email: str, settings: Settings) -> None:
    """Print a link that resets the password of an account, verifies its address, or invites to create one.

    An invitation without EMAIL is for anybody. The kind operator makes the account of the first operator.
    """
    if kind not in ("invite", "operator") and not email:
        raise click.UsageError(f"A link of the kind {kind} needs EMAIL.")
    if kind == "invite" and PlatformSettings.given_in(settings).sign_up == "closed":
        raise ValueError('Sign-up is closed: set sign_up = "invite" in [platform] of the config, and restart.')
    if kind == "operator":
        made = with_store(settings, lambda store: make_operator_link(store, now_ms()))
        if made is None:
            raise ValueError("There is an operator already. 'cadenza account operator EMAIL' makes another one.")
        path = made
    elif kind == "invite":
        path = with_store(settings, lambda store: invite(store, email, COMMAND_LINE, now_ms()))
    else:
        path = with_store(settings, lambda store: print_link(store, email, kind, COMMAND_LINE, now_ms()))
    base_url = settings.site_url
    if base_url is None:
        base_url = f"http://127.0.0.1:{settings.server.port}"
        say("The config has no base_url in [platform], so this link is for a browser on this machine.")
    click.echo(base_url + path)
    say(f"It works once, within {LINKS[kind]}. Only its reader should see it.")


@click.group(cls=CommandGroup)
def token() -> None:
    """Access tokens, with which scripts use the platform API."""


@token.command("create")
@account_option
@order_options(TokenOrder)
@settings_option
def create_token_(account: str, order: TokenOrder, settings: Settings) -> None:
    """Create a token and print it, alone on standard output. It is shown only this once."""
    secret, token = with_owner(settings, account, lambda store, owner: create_token(store, owner, order, now_ms()))
    click.echo(secret)
    say(f"This token is shown once; only its hash is stored. It expires at {rfc3339(token.expires_at)}.")
    say(f"Scopes: {', '.join(token.scopes)}. To revoke it: cadenza token revoke {token.id}")


@token.command("list")
@account_option
@json_option
@settings_option
def list_(account: str, as_json: bool, settings: Settings) -> None:
    """List the tokens of an account, with their last use."""
    views = read_owner(settings, account, lambda store, owner: list_tokens(store, owner, now_ms()))
    print_list([to_row(token, *FIELDS) for token in reversed(views)], FIELDS, as_json=as_json)


@token.command()
@click.argument("token", metavar="PREFIX_OR_ID")
@settings_option
def revoke(token: str, settings: Settings) -> None:
    """Revoke a token. It stops working at once. Name it by its id, its first 12 characters or itself."""
    revoked = with_store(settings, lambda store: revoke_token(store, COMMAND_LINE, token, now_ms()))
    say(f"The token {revoked.prefix}… ({revoked.id}) is revoked.")


def _read_password(*, from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    no_terminal = "There is no terminal to ask for the password: send it with --password-stdin."
    return ask("Password", no_terminal, is_secret=True, is_new=True)
