"""Adding credit to an account: what the command of the core shares with that of a part, which replaces it."""

import click

from cadenza.config import Settings
from cadenza.control.money.credit import give_credit
from cadenza.core.money import format_dollars
from cadenza.core.records import COMMAND_LINE
from cadenza.store.tables.accounts import Account
from cadenza.terminal.configured import settings_option, with_store
from cadenza.terminal.console import now_ms, options, reference_option, say, say_repeated

EXPIRES = "After how many days the rest expires."
credit_options = options(  # of `cadenza account credit`
    click.argument("email"),
    click.argument("amount"),
    click.option("--note", metavar="TEXT", default="", help="The reason, for the ledger."),
    click.option("--expires", metavar="DAYS", type=int, show_default="never", help=EXPIRES),
    reference_option,
    settings_option,
)


def give(settings: Settings, email: str, amount_nano: int, note: str, expires_days: int | None, reference: str) -> None:
    done = with_store(
        settings,
        lambda store: give_credit(store, email, amount_nano, note, now_ms(), COMMAND_LINE, reference, expires_days),
    )
    if done.earlier_at is not None:
        say_repeated(done.earlier_at)
        say_balance(done.account, "The")
    else:
        say_balance(done.account, f"{format_dollars(amount_nano)} dollars were given; the")


def say_balance(account: Account, start: str) -> None:
    say(f"{start} balance of {account.email} is {format_dollars(account.balance_nano)} dollars.")
    if account.debt_nano:
        say(f"A debt of {format_dollars(account.debt_nano)} dollars is still open: new credit pays it first.")
