"""The processes that use a store at this moment, for commands that change or move it under them.

On SQLite a living process holds the lock of its file. On Postgres its heartbeats move; up to schema 0004 it held an
advisory lock. A process up to LAST_SILENT does not say what it runs: it counts as the newest such release that fits.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from cadenza.store import files
from cadenza.store.store import StoreUnavailable

LOOK_EVERY_S = 0.25
SEEN_S = 2.0  # a living process writes four heartbeats in this time
DEAD_S = 6.0  # the other processes too take it for dead then

LAST_SILENT = "0007"
DESCRIBED = ("version", "revision", "host", "pid")  # what a process says of itself, beside its name

Fields = Mapping[str, Any]  # a row of `processes`, with the columns that its schema has


class Living(msgspec.Struct, frozen=True):
    """A process that runs, and as much as it says of itself."""

    name: str
    revision: str  # the newest schema that its program knows
    version: str | None = None
    host: str | None = None
    pid: int | None = None

    def __str__(self) -> str:
        known = {"version": self.version, "schema": self.revision, "host": self.host, "pid": self.pid}
        return f"{self.name} ({', '.join(f'{name} {value}' for name, value in known.items() if value is not None)})"


def describe_this_process(revision: str) -> dict[str, str | int]:
    """What the row of this process says beside its name."""
    said: tuple[str | int, ...] = (version("cadenza"), revision, socket.gethostname(), os.getpid())
    return {f"its_{name}": value for name, value in zip(DESCRIBED, said, strict=True)}


def program_of(row: Fields, revision: str) -> str:
    """The newest schema that the program of a process knows. `revision` is that of the store."""
    return row.get("revision") or min(revision, LAST_SILENT)


def living(row: Fields, revision: str) -> Living:
    """The process of a row. `revision` is that of the store."""
    said = {name: row.get(name) for name in ("version", "host", "pid")}
    return Living(row["name"], program_of(row, revision), **said)


def holding_locks(database: Path, rows: Iterable[Fields], revision: str) -> list[Living]:
    """The living processes of a SQLite store. One that has just started may have no row yet."""
    known = {row["name"]: row for row in rows}
    locked = sorted(name for name in files.lock_names(database) if files.is_locked(database, name))
    return [living(known.get(name, {"name": name}), revision) for name in locked]


async def beating(read: Callable[[], Awaitable[list[Fields]]]) -> list[Fields]:
    """The rows of a Postgres store whose heartbeats move while this looks: not at all if there are no rows."""
    before = {row["name"]: row["beats"] for row in await read()}
    moved: dict[str, Fields] = {}
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while before.keys() - moved.keys() and loop.time() - began_s < (SEEN_S if moved else DEAD_S):
        await asyncio.sleep(LOOK_EVERY_S)
        rows = await read()
        moved |= {row["name"]: row for row in rows if before.get(row["name"]) != row["beats"]}
        before = {name: beats for name, beats in before.items() if any(row["name"] == name for row in rows)}
    return [moved[name] for name in sorted(moved)]


def refuse(processes: list[Living], needed: str) -> None:
    """StoreUnavailable if one of them knows only schemas before `needed`, with the names of all such."""
    if broken := [process for process in processes if process.revision < needed]:
        raise StoreUnavailable(
            f"The new schema would break processes that run on this store: {', '.join(map(str, broken))}.",
            "Nothing was changed. Stop them, and run 'cadenza migrate' again.",
        )
