"""The command line. Every command works beside a running server, which sees its effect on the very next request."""

import sys

import typer

from cadenza.cli.accounts import accounts
from cadenza.cli.classes import classes
from cadenza.cli.console import say
from cadenza.cli.doctor import doctor
from cadenza.cli.keys import keys
from cadenza.cli.ledger import ledger, usage
from cadenza.cli.serve import migrate, serve
from cadenza.config import ConfigError
from cadenza.control.errors import ControlError
from cadenza.store.database import StoreUnavailable

app = typer.Typer(
    help="Cadenza: a hosted chat-completion service that anyone can run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.add_typer(accounts, name="account")
app.add_typer(keys, name="key")
app.add_typer(classes, name="classes")
app.command()(usage)
app.add_typer(ledger, name="ledger")
app.command()(migrate)
app.command()(doctor)


def main() -> None:
    """The faults that a person can mend are said in one sentence; only a fault of our own shows a traceback."""
    try:
        app()
    except (ConfigError, ControlError, StoreUnavailable, ValueError) as error:
        say(f"cadenza: {error}")
        sys.exit(1)
