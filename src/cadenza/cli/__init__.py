"""The command line. Every command works beside a running server, which sees its effect with the next request.

Help, completion and the version import no command.
"""

import atexit
import gc
import sys
from collections.abc import Sequence

import click

from cadenza import parts
from cadenza.core.errors import ExpectedError
from cadenza.terminal.console import print_place, say
from cadenza.terminal.lazy import LazyGroup

GC_THRESHOLD = 100_000  # with Python's default, garbage collection takes a tenth of the import time
SECTIONS = {
    "Start": {
        "init": (
            "init.init",
            "Set up a model: find one on this machine or ask for a provider, try it, and write a config.",
        ),
        "serve": ("serve.serve", "Run the service until SIGTERM or Ctrl-C."),
        "doctor": (
            "doctor.command.doctor",
            "Check the config and all that a start needs, from the store to the routes.",
        ),
    },
    "Accounts and keys": {
        "account": ("accounts.accounts", "Accounts and their credit."),
        "key": ("keys.keys", "API keys."),
        "connect": (
            "connect.connect",
            "Print the settings that connect CLIENT to this service, with a new key in them.",
        ),
    },
    "Money": {
        "usage": (
            "ledger.usage",
            "Show what an account used, or all of them, and what it cost: by default in the last 30 days.",
        ),
        "refund": ("ledger.refund", "Refund a request: all of it or a part."),
        "ledger": ("ledger.ledger", "Check the ledger, and export it."),
    },
    "Models": {
        "class": ("classes.classes", "Classes: what serves them, and its replacement after evaluation."),
        "route": ("routes.routes", "Routes: list them, or keep requests from one for some time."),
    },
    "Watch": {
        "top": (
            "top.command.top",
            "Show what is wrong with the service and what it does: requests, tokens, money, slots, and every route.",
        ),
        "tail": ("requests.tail", "Follow the requests of all processes on the store as they end, until Ctrl-C."),
        "explain": ("requests.explain", "Show everything that is known of one request, in order."),
        "audit": ("audit_log.audit", "The audit log, which says who did what to whom."),
    },
    "Maintain": {
        "backup": ("stores.backup", "Copy the store to FILE while the service runs, and check the copy."),
        "migrate": ("stores.migrate", "Create the store, or upgrade it to the current schema."),
    },
}
OF_PARTS = [(part.heading, name) for part in parts.having("commands") for name in part.commands if " " not in name]
HEADINGS = {
    heading: " ".join(dict.fromkeys([*section, *(name for under, name in OF_PARTS if under == heading)]))
    for heading, section in SECTIONS.items()
}


@click.group(
    cls=LazyGroup,
    places={name: place for section in SECTIONS.values() for name, place in section.items()},
    sections=HEADINGS,
)
@click.version_option(package_name="cadenza", message="cadenza %(version)s")
def app() -> None:
    """Cadenza: a chat-completion service that you run yourself.

    New here? Run `cadenza init`, then `cadenza serve`.
    """


def main(args: Sequence[str] | None = None) -> None:
    """Run a command. An expected error is a sentence and exit code 1; only a bug shows its place."""
    gc.set_threshold(GC_THRESHOLD)
    atexit.register(gc.freeze)  # no collection at exit either: saves 0.2 s
    sys.excepthook = print_place
    try:
        app(args=args, prog_name="cadenza")
    except (ExpectedError, ValueError) as error:
        say(f"cadenza: {error}")
        sys.exit(1)
