"""cadenza account: create, list, credit, correct, what an operator changes, export and erase."""

import sys
from pathlib import Path

import click

from cadenza.config import Settings
from cadenza.control.account.accounts import (
    get_account,
    list_accounts,
    resume_account,
    set_class,
    suspend_account,
)
from cadenza.control.account.erasure import erase_account
from cadenza.control.account.export import archive_name, write_to
from cadenza.control.money.credit import correct_credit
from cadenza.core.money import format_dollars, parse_dollars
from cadenza.core.records import COMMAND_LINE
from cadenza.terminal.configured import read_store, settings_option, usable_class, with_store
from cadenza.terminal.console import (
    AmountCommand,
    ask,
    json_option,
    now_ms,
    print_list,
    reference_option,
    say,
    say_repeated,
    to_row,
)
from cadenza.terminal.credit import credit_options, give
from cadenza.terminal.lazy import LazyGroup
from cadenza.terminal.new_account import create, create_options
from cadenza.terminal.new_files import new_file

COLUMNS = ("email", "state", "class", "balance", "granted", "held", "debt", "created_at", "id")

email_argument = click.argument("email")


@click.group(cls=LazyGroup, places={}, words="account")
def accounts() -> None:
    """Accounts and their credit."""


@accounts.command("create")
@create_options
def create_(email: str, credit: str, preferred_class: str | None, reference: str, settings: Settings) -> None:
    """Create an account."""
    create(settings, email, credit, preferred_class, reference)


@accounts.command("list")
@json_option
@settings_option
def list_(as_json: bool, settings: Settings) -> None:
    """List the accounts, with their balance, held credit and debt."""
    rows = [
        {
            **to_row(account, "id", "email"),
            "state": account.state,
            "is_operator": bool(account.is_operator),  # SQLite has no booleans
            "class": account.preferred_class,
            **to_row(account, "balance", "granted", "held", "debt", "created_at"),
        }
        for account in read_store(settings, list_accounts)
    ]
    print_list(rows, COLUMNS, as_json=as_json)


@accounts.command(cls=AmountCommand)
@credit_options
def credit(email: str, amount: str, note: str, expires: int | None, reference: str, settings: Settings) -> None:
    """Add credit to an account, as a gift: an amount of dollars, like 5.00."""
    give(settings, email, parse_dollars(amount), note, expires, reference)


@accounts.command(cls=AmountCommand)
@email_argument
@click.argument("amount")
@click.option("--reason", metavar="TEXT", required=True, help="Why, for the ledger. The account's owner sees it.")
@reference_option
@settings_option
def correct(email: str, amount: str, reason: str, reference: str, settings: Settings) -> None:
    """Take credit back from an account: a negative amount of dollars, like -1.00. It never goes below zero.

    What running requests hold is taken when they end.
    """
    amount_nano = -parse_dollars(amount[1:]) if amount.startswith("-") else parse_dollars(amount)
    done = with_store(
        settings,
        lambda store: correct_credit(store, email, amount_nano, reason, COMMAND_LINE, now_ms(), reference),
    )
    if done.earlier_at is not None:
        say_repeated(done.earlier_at)
    else:
        say(f"Took {format_dollars(done.taken_nano)} dollars from {done.email}.")
    if done.owed_nano:
        say(f"{format_dollars(done.owed_nano)} dollars are a debt: ended requests and new credit pay it first.")
    say(f"The balance is {format_dollars(done.balance_nano)} dollars.")


@accounts.command("class")
@email_argument
@click.argument("class_id", metavar="CLASS")
@settings_option
def class_(email: str, class_id: str, settings: Settings) -> None:
    """Choose the class that 'auto' means for an account, from its next request on."""
    chosen = usable_class(settings, class_id)
    account = with_store(settings, lambda store: set_class(store, email, chosen, COMMAND_LINE, now_ms()))
    say(f"For {account.email}, auto means {account.preferred_class} now.")


@accounts.command()
@email_argument
@settings_option
def suspend(email: str, settings: Settings) -> None:
    """Refuse the keys and the sign-in of an account."""
    account = with_store(settings, lambda store: suspend_account(store, email, COMMAND_LINE, now_ms()))
    say(f"{account.email} is suspended: its keys are refused, and every browser is signed out.")


@accounts.command()
@email_argument
@settings_option
def resume(email: str, settings: Settings) -> None:
    """End the suspension of an account."""
    account = with_store(settings, lambda store: resume_account(store, email, COMMAND_LINE, now_ms()))
    say(f"{account.email} is not suspended any more.")


@accounts.command()
@email_argument
@click.option("--out", metavar="FILE", help="A file that does not exist yet.", show_default="named after the account")
@settings_option
def export(email: str, out: str | None, settings: Settings) -> None:
    """Write everything that is stored about an account into a zip file: personal data, usage and money.

    Its README.txt explains every field. It has no passwords, keys or hashes, and no message content.
    """
    at_ms = now_ms()
    account = with_store(settings, lambda store: get_account(store, email))
    path = Path(out or archive_name(account, at_ms))
    with new_file(path) as file:
        with_store(settings, lambda store: write_to(file, store, account.email, COMMAND_LINE, at_ms))
    say(f"{path} has everything about {account.email}: {path.stat().st_size:,} bytes. Only its owner should see it.")


@accounts.command()
@email_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@settings_option
def erase(email: str, yes: bool, settings: Settings) -> None:
    """Erase an account permanently: address, password, notes, sessions and the names of its keys.

    Its keys stop at once. Its entries and its usage stay, without a name. Credit that is left is forfeited.
    """
    account = with_store(settings, lambda store: get_account(store, email))
    say(f"{account.email} has {format_dollars(account.balance_nano)} dollars of credit, which are forfeited.")
    if not yes and _confirm_address(account.email) != account.email:
        raise ValueError("That is not the address. Nothing was erased.")
    erased = with_store(settings, lambda store: erase_account(store, email, COMMAND_LINE, now_ms()))
    say(f"The account is erased. Its entries and its usage stay under {erased.account_id}.")
    say(f"Forfeited: {format_dollars(erased.forfeited_nano)} dollars.")
    if erased.leaves_log:
        say("Another program reads the store: until the service stops, its file *-wal may have what was erased.")


def _confirm_address(email: str) -> str:
    say("You cannot undo this.")
    try:
        no_terminal = "There is no terminal to ask: confirm with --yes. Nothing was erased."
        return ask(f"Type {email} to erase it", no_terminal).strip().lower()
    finally:
        if not sys.stdin.isatty():
            say("")  # nobody typed a line break after the question
