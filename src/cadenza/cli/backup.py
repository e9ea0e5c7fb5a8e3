"""cadenza backup."""

import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from cadenza.cli.console import config_option, load_config, read_store, say

MEGABYTE = 1_000_000


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
