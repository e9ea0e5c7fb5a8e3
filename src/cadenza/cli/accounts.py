"""cadenza account create | list | credit. What changes an account is in account_changes.py."""

import re
from itertools import pairwise

import click

from cadenza.cli.account_changes import COMMANDS, read_password, usable_class
from cadenza.cli.console import (
    config_option,
    json_option,
    load_config,
    now_ms,
    print_list,
    read_store,
    reference_option,
    say,
    with_store,
)
from cadenza.core.formats import rfc3339_or_none
from cadenza.core.money import format_dollars, parse_dollars
from cadenza.core.records import DEFAULT_CLASS

COLUMNS = ("email", "state", "class", "balance", "held", "debt", "created_at", "id")
NEGATIVE_NUMBER = re.compile(r"-\.?\d.*")


class AmountCommand(click.Command):
    """A command whose last argument is an amount: `-5` is read as a negative number, not as an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            return super().parse_args(ctx, args)
        words: list[str] = []
        amounts: list[str] = []
        for before, word in pairwise(["", *args]):
            is_amount = NEGATIVE_NUMBER.fullmatch(word) and not before.startswith("--")
            (amounts if is_amount else words).append(word)
        return super().parse_args(ctx, [*words, "--", *amounts])


@click.group()
def accounts() -> None:
    """Accounts and their credit."""


@accounts.command()
@click.argument("email")
@click.option("--credit", metavar="DOLLARS", default="0.00", show_default=True, help="Opening credit, in dollars.")
@click.option(
    "--class",
    "preferred_class",
    metavar="CLASS",
    show_default=DEFAULT_CLASS,
    help="The class that 'auto' means for this account.",
)
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@reference_option
@config_option
def create(
    email: str, credit: str, preferred_class: str | None, password_stdin: bool, reference: str, config: str | None
) -> None:
    """Create an account. The password is read from a prompt."""
    from cadenza.control.account.accounts import create_account  # noqa: PLC0415 import time

    settings = load_config(config)
    credit_nano = parse_dollars(credit)
    class_id = usable_class(settings, preferred_class)
    password = read_password(from_stdin=password_stdin)
    account = with_store(
        settings, lambda store: create_account(store, email, password, credit_nano, class_id, now_ms(), reference)
    )
    say(f"Created {account.email} with {format_dollars(account.balance_nano)} dollars of credit.")
    say(f"Create a key for it: cadenza key create --account {account.email}")


@accounts.command("list")
@json_option
@config_option
def list_(as_json: bool, config: str | None) -> None:
    """List the accounts."""
    from cadenza.control.account.accounts import list_accounts  # noqa: PLC0415 import time

    rows = [
        {
            "id": account.id,
            "email": account.email,
            "state": "active" if account.suspended_at is None else "suspended",
            "is_operator": bool(account.is_operator),  # SQLite has no booleans
            "class": account.preferred_class,
            "balance": format_dollars(account.balance_nano),
            "held": format_dollars(account.held_nano),
            "debt": format_dollars(account.debt_nano),
            "created_at": rfc3339_or_none(account.created_at),
        }
        for account in read_store(load_config(config), list_accounts)
    ]
    print_list(rows, COLUMNS, as_json=as_json)


@accounts.command(cls=AmountCommand)
@click.argument("email")
@click.argument("amount")
@click.option("--note", metavar="TEXT", default="", help="The reason, for the ledger.")
@reference_option
@config_option
def credit(email: str, amount: str, note: str, reference: str, config: str | None) -> None:
    """Add credit to an account: an amount of dollars, like 5.00."""
    from cadenza.control.money.credit import give_credit  # noqa: PLC0415 import time
    from cadenza.store.tables.audit_events import COMMAND_LINE  # noqa: PLC0415 import time

    amount_nano = parse_dollars(amount)
    done = with_store(
        load_config(config),
        lambda store: give_credit(store, email, amount_nano, note, now_ms(), COMMAND_LINE, reference),
    )
    if done.earlier_at is not None:
        say_repeated(done.earlier_at)
    say(f"The balance of {done.account.email} is {format_dollars(done.account.balance_nano)} dollars.")
    if done.account.debt_nano:
        say(f"A debt of {format_dollars(done.account.debt_nano)} dollars is still open: new credit pays it first.")


def say_repeated(earlier_at: int) -> None:
    say(f"This reference was used at {rfc3339_or_none(earlier_at)}, and counts once: nothing was changed now.")


for command in COMMANDS:
    accounts.add_command(command)
