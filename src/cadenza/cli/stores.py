"""The care of the store: cadenza migrate and cadenza backup."""

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from cadenza import parts
from cadenza.config import Settings
from cadenza.control.store.copies import back_up_store
from cadenza.core.errors import ControlError
from cadenza.store.address import MoveStore
from cadenza.store.migrate import migrate as migrate_store
from cadenza.terminal.configured import read_store, say_backup, settings_option, use_store
from cadenza.terminal.console import say

NO_MOVE = "A store is carried over from SQLite to Postgres: --from sqlite:///… --to postgresql://…"
MEGABYTE = 1_000_000


@click.command()
@settings_option
@click.option(
    "--from", "source", metavar="URL", help="The SQLite store to carry over, like sqlite:///./data/cadenza.db."
)
@click.option("--to", "target", metavar="URL", help="The empty Postgres database to carry it over to.")
def migrate(settings: Settings, source: str | None, target: str | None) -> None:
    """Create the store, or upgrade it to the current schema. A SQLite store is copied first.

    With --from and --to: carry a SQLite store over to Postgres instead, and check both. The service must be stopped.
    The source is not changed, and the command can be run again.
    """
    if source and target:
        _move(source, target)
    elif source or target:
        raise click.UsageError("--from and --to belong together.")
    else:
        revision = use_store(settings, lambda store: migrate_store(store, say_backup))
        say(f"The store's schema is at revision {revision}.")


def _move(source: str, target: str) -> None:
    part = parts.find(target)
    if not source.startswith("sqlite:") or not part or "move" not in part.has:
        raise ControlError(NO_MOVE)
    move: MoveStore = part.load("move").move
    carried = asyncio.run(move(source, target))
    counts = ", ".join(f"{name}: {rows}" for name, rows in carried.rows.items())
    done = "Carried over" if carried.is_new else "The target has these rows already, and nothing was changed"
    say(f"{done}. Rows of {counts}. Both ledgers are sound.")
    say("Name the new address in [store] before the next start. The old store stays as it is.")


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@settings_option
def backup(file: Path | None, settings: Settings) -> None:
    """Copy the store to FILE while the service runs, and check the copy.

    Without FILE, the copy is beside the store, and its name has the time. No file is overwritten. Standard output is
    the path of the copy.
    """
    made = read_store(settings, lambda store: back_up_store(store, file, datetime.now(UTC)))
    click.echo(made.path)
    if made.findings:
        say(f"The ledger is not sound; findings: {made.findings}. Run 'cadenza ledger check'. The copy is complete.")
        sys.exit(1)
    say(f"Copied and checked: {made.size_bytes / MEGABYTE:.1f} MB, and its ledger is sound.")
