"""The processes that use a store at this moment, for commands that migrate or move it.

On SQLite a live process holds the lock of its file. On Postgres it writes heartbeats (fleet/presence.py).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from cadenza.store.process_locks import ProcessLocks
from cadenza.store.store import StoreUnavailable

LOOK_EVERY_S = 0.25
FOUND_S = 2.0  # if one live process was found: each writes four heartbeats in this time
DEAD_S = 6.0  # otherwise: after this time other processes take a silent one for dead, too

Fields = Mapping[str, Any]  # a row of `processes`, with the columns that its schema has
ReadRows = Callable[[], Awaitable[list[Fields]]]


def is_older(row: Fields, needed: str) -> bool:
    """Whether the program of a process knows only schemas before `needed`. One without a description may."""
    return str(row.get("revision", "")) < needed


def find_locked(database: Path, rows: Iterable[Fields]) -> list[Fields]:
    """The rows of the live processes of a SQLite store. One that has just started may have only a name yet."""
    known = {row["name"]: row for row in rows}
    return [known.get(name, {"name": name}) for name in ProcessLocks(database).live()]


async def find_live(read: ReadRows, lock: Callable[[], Awaitable[object]]) -> list[Fields]:
    """The rows of the live processes of a Postgres store. If there is none, `lock` locks out those that start now."""
    known = {row["name"] for row in await read()}
    if found := await find_with_heartbeat(read):
        return found
    await lock()
    return [row for row in await read() if row["name"] not in known]


async def find_with_heartbeat(read: ReadRows) -> list[Fields]:
    """The rows whose heartbeat counters change while this function watches them. Without rows it returns at once."""
    before = {row["name"]: row["beats"] for row in await read()}
    moved: dict[str, Fields] = {}
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while before.keys() - moved.keys() and loop.time() - began_s < (FOUND_S if moved else DEAD_S):
        await asyncio.sleep(LOOK_EVERY_S)
        rows = await read()
        moved |= {row["name"]: row for row in rows if before.get(row["name"]) != row["beats"]}
        before = {name: beats for name, beats in before.items() if any(row["name"] == name for row in rows)}
    return [moved[name] for name in sorted(moved)]


def refuse_older(rows: Iterable[Fields], needed: str) -> None:
    """StoreUnavailable, with their names, if the programs of some of these processes are too old."""
    if broken := [_describe(row) for row in rows if is_older(row, needed)]:
        raise StoreUnavailable(
            f"The new schema would break processes that run on this store: {', '.join(broken)}.",
            "Nothing was changed. Stop them, and run 'cadenza migrate' again.",
        )


def _describe(row: Fields) -> str:
    columns = {"version": "version", "schema": "revision", "host": "host", "pid": "pid"}
    known = ", ".join(f"{name} {row[column]}" for name, column in columns.items() if column in row)
    return f"{row['name']} ({known or 'which has just started'})"
