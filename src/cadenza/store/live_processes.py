"""The processes that use a store at this moment, for commands that migrate or move it.

On SQLite a live process holds the lock of its file. On Postgres it writes heartbeats (fleet/presence.py).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import text

from cadenza.store.process_locks import ProcessLocks
from cadenza.store.statements import Statement
from cadenza.store.store import StoreUnavailable

POLL_INTERVAL_S = 0.25
FOUND_S = 2.0  # if one live process was found: each writes four heartbeats in this time
DEAD_S = 6.0  # otherwise: after this time other processes take a silent one for dead, too
SELECT = "SELECT name, beats, version, revision, host, pid FROM processes"
PROCESSES = Statement(text(SELECT))


class LiveProcess(NamedTuple):
    """A row of `processes`. A process of SQLite that has just started may have only a name yet."""

    name: str
    beats: int = 0
    version: str = ""
    revision: str = ""
    host: str = ""
    pid: int = 0

    def __str__(self) -> str:
        if not self.pid:
            return f"{self.name} (which has just started)"
        return f"{self.name} (version {self.version}, schema {self.revision}, host {self.host}, pid {self.pid})"


Rows = Sequence[Sequence[Any]]
ReadRows = Callable[[], Awaitable[Rows]]


def find_locked(database: Path, rows: Rows) -> list[LiveProcess]:
    """The live processes of a SQLite store, which has these rows."""
    known = {row[0]: LiveProcess(*row) for row in rows}
    return [known.get(name, LiveProcess(name)) for name in ProcessLocks(database).live()]


async def find_live(read: ReadRows, lock: Callable[[], Awaitable[object]]) -> list[LiveProcess]:
    """The live processes of a Postgres store: those whose heartbeat counters change while this function watches them.

    If there is none, `lock` locks out those that start now. Without rows nothing is watched.
    """
    before = first = await _read(read)
    live: dict[str, LiveProcess] = {}
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while before.keys() - live.keys() and loop.time() - began_s < (FOUND_S if live else DEAD_S):
        await asyncio.sleep(POLL_INTERVAL_S)
        now = await _read(read)
        moved = (name for name in now if name not in before or before[name].beats != now[name].beats)
        live |= {name: now[name] for name in moved}
        before = {name: process for name, process in before.items() if name in now}
    if not live:
        await lock()
        live = {name: process for name, process in (await _read(read)).items() if name not in first}
    return [live[name] for name in sorted(live)]


async def _read(read: ReadRows) -> dict[str, LiveProcess]:
    return {row[0]: LiveProcess(*row) for row in await read()}


def refuse_older(live: Iterable[LiveProcess], needed: str) -> None:
    """StoreUnavailable, with their names, if the programs of some of these processes know only older schemas."""
    if broken := [str(process) for process in live if process.revision < needed]:
        raise StoreUnavailable(
            f"The new schema would break processes that run on this store: {', '.join(broken)}.",
            "Nothing was changed. Stop them, and run 'cadenza migrate' again.",
        )
