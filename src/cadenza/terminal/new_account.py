"""Creating an account: what the command of the core shares with that of a part, which replaces it."""

from collections.abc import Callable

import click

from cadenza.config import Settings
from cadenza.control.account.accounts import create_account
from cadenza.core.money import format_dollars, parse_dollars
from cadenza.core.records import DEFAULT_CLASS
from cadenza.terminal.configured import settings_option, usable_class, with_store
from cadenza.terminal.console import now_ms, options, reference_option, say

FOR_AUTO = "The class that 'auto' means for this account."
create_options = options(  # of `cadenza account create`
    click.argument("email"),
    click.option("--credit", metavar="DOLLARS", default="0.00", show_default=True, help="Opening credit, in dollars."),
    click.option("--class", "preferred_class", metavar="CLASS", show_default=DEFAULT_CLASS, help=FOR_AUTO),
    reference_option,
    settings_option,
)


def create(
    settings: Settings,
    email: str,
    credit: str,
    preferred_class: str | None,
    reference: str,
    make_hash: Callable[[], str] = str,
) -> None:
    """`make_hash` returns the hash of a password, for a part with which accounts have one."""
    credit_nano, class_id, password_hash = parse_dollars(credit), usable_class(settings, preferred_class), make_hash()
    account = with_store(
        settings, lambda store: create_account(store, email, credit_nano, class_id, now_ms(), reference, password_hash)
    )
    say(f"Created {account.email} with {format_dollars(account.balance_nano)} dollars of credit.")
    say(f"Create a key for it: cadenza key create --account {account.email}")
