"""cadenza account create | list | credit."""

import sys
from typing import Annotated

import typer

from cadenza.cli.console import AsJson, Config, now_ms, print_list, say, when, with_store
from cadenza.control import accounts as control
from cadenza.core.money import format_dollars, parse_dollars
from cadenza.core.records import DEFAULT_CLASS

accounts = typer.Typer(help="Accounts and their credit.", no_args_is_help=True)
COLUMNS = ("email", "class", "balance", "held", "created_at", "id")

Email = Annotated[str, typer.Argument(help="The account's email address.")]


@accounts.command()
def create(
    email: Email,
    credit: Annotated[str, typer.Option(help="Opening credit, in dollars.")] = "0.00",
    preferred_class: Annotated[str, typer.Option("--class", help="The class that 'auto' means.")] = DEFAULT_CLASS,
    password_stdin: Annotated[bool, typer.Option("--password-stdin", help="Read the password from stdin.")] = False,
    config: Config = None,
) -> None:
    """Create an account."""
    credit_nano = parse_dollars(credit)
    password = sys.stdin.readline().rstrip("\r\n") if password_stdin else _ask_password()
    account = with_store(
        config, lambda db: control.create_account(db, email, password, credit_nano, preferred_class, now_ms())
    )
    say(f"Created {account.email} with {format_dollars(account.balance_nano)} dollars of credit.")
    say(f"Make a key for it: cadenza key create --account {account.email}")


@accounts.command("list")
def list_(as_json: AsJson = False, config: Config = None) -> None:
    """List the accounts."""
    rows = [
        {
            "id": account.id,
            "email": account.email,
            "class": account.preferred_class,
            "balance": format_dollars(account.balance_nano),
            "held": format_dollars(account.held_nano),
            "created_at": when(account.created_at),
        }
        for account in with_store(config, control.list_accounts)
    ]
    print_list(rows, COLUMNS, as_json=as_json)


@accounts.command()
def credit(
    email: Email,
    amount: Annotated[str, typer.Argument(help="Dollars, like 5.00.")],
    note: Annotated[str, typer.Option(help="Why, for the ledger.")] = "",
    config: Config = None,
) -> None:
    """Give an account credit."""
    amount_nano = parse_dollars(amount)
    account = with_store(config, lambda db: control.give_credit(db, email, amount_nano, note, now_ms()))
    say(f"The balance of {account.email} is {format_dollars(account.balance_nano)} dollars.")


def _ask_password() -> str:
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
