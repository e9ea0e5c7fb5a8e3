"""What the commands share: consoles, the --config and --json options, times, and lists as a table or as JSON."""

import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer
import uvloop
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cadenza.app import open_store
from cadenza.config import Settings, load_settings
from cadenza.store.database import Database

Config = Annotated[
    str | None, typer.Option("--config", help="The config file. [default: $CADENZA_CONFIG, else ./cadenza.toml]")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON array, oldest first.")]
T = TypeVar("T")

TABLE_COLUMNS_MAX = 1000  # a list is never cut: what it shows can be copied

out = Console()
err = Console(stderr=True)


def settings_of(config: str | None) -> Settings:
    return load_settings(config, os.environ, Path.cwd())


def with_store(config: str | None, work: Callable[[Database], Awaitable[T]]) -> T:
    """Run `work` on the configured store, migrated where it is SQLite."""
    settings = settings_of(config)

    async def run() -> T:
        db = Database(settings.store.url)
        try:
            await open_store(db)
            return await work(db)
        finally:
            await db.close()

    return uvloop.run(run())


def say(line: str, console: Console = err) -> None:
    """One line as it is: no markup, no colour, no line break of rich's own."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def when(moment_ms: int | None) -> str | None:
    """RFC 3339, in UTC."""
    if moment_ms is None:
        return None
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def print_list(rows: Sequence[Mapping[str, object]], columns: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode() + "\n")
        return
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(Text(_cell(row[column])) for column in columns))
    Console(width=TABLE_COLUMNS_MAX).print(table)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
