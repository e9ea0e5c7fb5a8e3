"""The command line. Every command works beside a running server, which sees its effect with the next request.

A command imports what it needs when it runs: help, completion and mistakes of typing load neither config nor store.
"""

import atexit
import gc
import sys
from collections.abc import Sequence

import click
from click.shell_completion import get_completion_class

from cadenza.cli.accounts import accounts
from cadenza.cli.audit import retention
from cadenza.cli.classes import classes
from cadenza.cli.console import print_place, say
from cadenza.cli.doctor.command import doctor
from cadenza.cli.documents import documents
from cadenza.cli.evaluate import evaluate
from cadenza.cli.index import index
from cadenza.cli.init import init
from cadenza.cli.keys import keys
from cadenza.cli.ledger import ledger, refund, usage
from cadenza.cli.margins import margin, reconcile
from cadenza.cli.memory import memory
from cadenza.cli.model import model
from cadenza.cli.months import close, report, verify
from cadenza.cli.operator import audit
from cadenza.cli.prices import price
from cadenza.cli.requests import explain, tail
from cadenza.cli.serve import backup, migrate, serve
from cadenza.cli.suites import suite
from cadenza.cli.tokens import tokens
from cadenza.cli.top.command import top
from cadenza.cli.vouchers import vouchers
from cadenza.cli.watch import watch

COMPLETE_VARIABLE = "_CADENZA_COMPLETE"
GC_THRESHOLD = 100_000  # with Python's default, garbage collection takes a tenth of the import time


@click.group()
@click.version_option(package_name="cadenza", message="cadenza %(version)s")
def app() -> None:
    """Cadenza: a chat-completion service that you run yourself."""


@app.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands on Tab."""
    script = get_completion_class(shell)
    assert script, "click knows all three shells"
    click.echo(script(app, {}, "cadenza", COMPLETE_VARIABLE).source())


app.add_command(init)
app.add_command(serve)
app.add_command(accounts, "account")
app.add_command(keys, "key")
app.add_command(tokens, "token")
app.add_command(vouchers, "voucher")
app.add_command(memory)
app.add_command(model)
classes.add_command(evaluate)
classes.add_command(price)
classes.add_command(suite)
classes.add_command(watch)
app.add_command(classes)
app.add_command(usage)
app.add_command(refund)
app.add_command(margin)
app.add_command(reconcile)
ledger.add_command(close)
ledger.add_command(verify)
app.add_command(ledger)
app.add_command(documents)
app.add_command(report)
app.add_command(top)
app.add_command(explain)
app.add_command(tail)
app.add_command(click.Group("acts", dict(audit.commands), hidden=True))  # the name of `audit` in earlier releases
audit.add_command(retention)
app.add_command(audit)
app.add_command(index)
app.add_command(migrate)
app.add_command(backup)
app.add_command(doctor)


def main(args: Sequence[str] | None = None) -> None:
    """Run a command. An expected error is one sentence and exit code 1; only a bug shows its place."""
    gc.set_threshold(GC_THRESHOLD)
    atexit.register(gc.freeze)  # no collection at exit either: saves 0.2 s
    sys.excepthook = print_place
    try:
        app(args=args, prog_name="cadenza", complete_var=COMPLETE_VARIABLE)
    except SystemExit:
        raise
    except _expected_errors() as error:  # evaluated only once something is raised
        say(f"cadenza: {error}")
        sys.exit(1)


def _expected_errors() -> tuple[type[Exception], ...]:
    from cadenza.config import ConfigError  # noqa: PLC0415 import time
    from cadenza.core.errors import ControlError  # noqa: PLC0415 import time
    from cadenza.store.store import StoreUnavailable  # noqa: PLC0415 import time

    return ConfigError, ControlError, StoreUnavailable, ValueError
