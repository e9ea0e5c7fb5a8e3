"""cadenza account erase."""

import sys

import click

from cadenza.cli.console import config_option, load_config, now_ms, say, with_store
from cadenza.core.money import format_dollars


@click.command()
@click.argument("email")
@click.option("--yes", is_flag=True, help="Do not ask.")
@config_option
def erase(email: str, yes: bool, config: str | None) -> None:
    """Erase an account for good: address, password, notes, sessions and the names of its keys.

    Its keys stop at once. Its entries and its usage stay, without a name. Credit that is left is forfeited.
    """
    from cadenza.control.account.accounts import get_account  # noqa: PLC0415 import time
    from cadenza.control.account.erasure import erase_account  # noqa: PLC0415 import time
    from cadenza.store.tables.audit_events import COMMAND_LINE  # noqa: PLC0415 import time

    settings = load_config(config)
    account = with_store(settings, lambda store: get_account(store, email))
    say(f"{account.email} has {format_dollars(account.balance_nano)} dollars of credit, which are forfeited.")
    if not yes and _ask(account.email) != account.email:
        raise ValueError("That is not the address. Nothing was erased.")
    erased = with_store(settings, lambda store: erase_account(store, email, COMMAND_LINE, now_ms()))
    say(f"The account is erased. Its entries and its usage stay under {erased.account_id}.")
    say(f"Forfeited: {format_dollars(erased.forfeited_nano)} dollars.")
    if erased.leaves_log:
        say("Another program reads the store: until the service stops, its file *-wal may have what was erased.")


def _ask(email: str) -> str:
    say("You cannot undo this.")
    try:
        return str(click.prompt(f"Type {email} to erase it", err=True)).strip().lower()
    except click.Abort:
        if sys.stdin.isatty():
            raise  # Ctrl-C
        raise ValueError("There is no terminal to ask: confirm with --yes. Nothing was erased.") from None
    finally:
        if not sys.stdin.isatty():
            say("")  # nobody typed a line break after the question
