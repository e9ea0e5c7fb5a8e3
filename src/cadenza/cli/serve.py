"""cadenza serve, and the care of its store: cadenza migrate and cadenza backup."""

import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from cadenza.cli.console import config_option, load_config, read_store, say, say_backup, use_store

MEGABYTE = 1_000_000
CONFIG_EXIT = 78  # EX_CONFIG of sysexits.h: a supervisor need not try again


@click.command()
@config_option
@click.option("--host", metavar="ADDRESS", show_default="server.host in the config", help="The address to listen on.")
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    show_default="server.port in the config",
    help="The port to listen on; 0 for any free one.",
)
def serve(config: str | None, host: str | None, port: int | None) -> None:
    """Run the service until SIGTERM or Ctrl-C."""
    from cadenza.process import claim_object_memory  # noqa: PLC0415 import time

    claim_object_memory()

    from cadenza.cli.start import run_service  # noqa: PLC0415 import time
    from cadenza.config import ConfigError  # noqa: PLC0415 import time

    try:
        settings = load_config(config)
        run_service(settings, host or settings.server.host, settings.server.port if port is None else port)
    except ConfigError as error:
        say(f"cadenza: {error}")
        sys.exit(CONFIG_EXIT)


@click.command()
@config_option
@click.option(
    "--from", "source", metavar="URL", help="The SQLite store to carry over, like sqlite:///./data/cadenza.db."
)
@click.option("--to", "target", metavar="URL", help="The empty Postgres database to carry it over to.")
def migrate(config: str | None, source: str | None, target: str | None) -> None:
    """Upgrade the store to the current schema.

    With --from and --to: carry a SQLite store over to Postgres instead, and check both. The service must be stopped.
    The source is not changed, and the command can be run again.
    """
    if source and target:
        _move(source, target)
    elif source or target:
        raise click.UsageError("--from and --to belong together.")
    else:
        from cadenza.store.migrate import migrate as migrate_store  # noqa: PLC0415 import time

        revision = use_store(load_config(config), lambda store: migrate_store(store, say_backup))
        say(f"The store's schema is at revision {revision}.")


def _move(source: str, target: str) -> None:
    import asyncio  # noqa: PLC0415 import time

    from cadenza.control.store.copies import move_store  # noqa: PLC0415 import time

    carried = asyncio.run(move_store(source, target))
    counts = ", ".join(f"{name}: {rows}" for name, rows in carried.rows.items())
    done = "Carried over" if carried.is_new else "The target has these rows already, and nothing was changed"
    say(f"{done}. Rows of {counts}. Both ledgers are sound.")
    say("Name the new address in [store] before the next start. The old store stays as it is.")


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@config_option
def backup(file: Path | None, config: str | None) -> None:
    """Copy the store to FILE while the service runs, and check the copy.

    Without FILE, the copy is beside the store, and its name has the time. No file is overwritten. Standard output is
    the path of the copy.
    """
    from cadenza.control.store.copies import back_up_store  # noqa: PLC0415 import time

    made = read_store(load_config(config), lambda store: back_up_store(store, file, datetime.now(UTC)))
    click.echo(made.path)
    if made.findings:
        say(f"The ledger is not sound; findings: {made.findings}. Run 'cadenza ledger check'. The copy is complete.")
        sys.exit(1)
    say(f"Copied and checked: {made.size_bytes / MEGABYTE:.1f} MB, and its ledger is sound.")
