"""cadenza retention audit, or audit retention: whether content stays anywhere, on this installation."""

import asyncio
import signal
import sys
import tomllib
from collections.abc import Coroutine

import click

from cadenza.config import ConfigError
from cadenza.core.errors import ControlError
from cadenza.parts.retention.report import Findings, to_text
from cadenza.parts.retention.run import run_audit
from cadenza.store.store import StoreUnavailable
from cadenza.terminal.configured import load_config
from cadenza.terminal.console import config_option, json_option, print_json, say
from cadenza.terminal.lazy import CommandGroup

EXIT_CODES = {"clean": 0, "found": 1, "inconclusive": 2}
FAILED_CODE = 2
INTERRUPTED_CODE = 130


@click.group(cls=CommandGroup)
def retention() -> None:
    """What stays of the content that was sent."""


@retention.command("audit")
@json_option
@config_option
def audit_retention(*, as_json: bool, config: str | None) -> None:
    """Send random words as content, in every place where content can be, and search for them everywhere.

    A service of its own is started with your config, on a store of the same kind, and removed again; providers are
    replaced by a built-in one.

    Exit code: 0 if nothing was found, 1 if something was, 2 if the audit could not be made.
    """
    findings = Findings()
    try:
        settings = load_config(config)
        given = tomllib.loads(settings.source.read_text(encoding="utf-8-sig")) if settings.source else {}
        say("Auditing a service of its own …")
        asyncio.run(_end_by_signal(run_audit(settings, given, findings)))
    except (ConfigError, ControlError, StoreUnavailable, ValueError, OSError) as error:
        say(f"cadenza: the audit could not be made: {error}")
        sys.exit(FAILED_CODE)
    except KeyboardInterrupt:
        say("\nInterrupted. What the audit had made is removed.")
        sys.exit(INTERRUPTED_CODE)
    result = findings.result(settings)
    if as_json:
        print_json([result])
    else:
        click.echo("\n".join(to_text(result)))
    sys.exit(EXIT_CODES[result["verdict"]])


async def _end_by_signal(work: Coroutine[None, None, None]) -> None:
    """Do the work. SIGTERM cancels it, so that everything is removed, as Ctrl-C does."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
