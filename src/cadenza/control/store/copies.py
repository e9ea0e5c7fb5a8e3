"""A copy of a SQLite store beside a running service. It is consistent, private, checked, and never overwrites a file.

A Postgres store is copied by Postgres's own tools; the error names the command.
"""

import asyncio
import contextlib
import shlex
import shutil
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from cadenza.core.errors import ControlError
from cadenza.ledger import check
from cadenza.store.sqlite import files
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.store import WAIT_S, Store

SPARE_BYTES = 32 * 1024 * 1024  # stays free for the service, whose write-ahead log grows while the copy is made


class Backup(msgspec.Struct, frozen=True):
    """A complete copy, and how many findings the check of its ledger has."""

    path: Path
    size_bytes: int
    findings: int


async def back_up_store(store: Store, file: Path | None, now: datetime) -> Backup:
    """Copy a SQLite store to `file`, or beside it under a name with the time, and check the copy."""
    if store.path is None:
        command = f"pg_dump --format=custom --file={shlex.quote(str(file or 'cadenza.dump'))} ADDRESS"
        raise ControlError(f"A Postgres store is copied by Postgres. Run, with the address as in [store]: {command}")
    database = store.path
    copy = file or database.with_name(f"{database.stem}-{files.format_moment(now)}{database.suffix}")
    with _mapped_errors(copy), files.new_copy(copy) as partial:
        _check_space(database, copy.parent)
        await asyncio.to_thread(files.copy_snapshot, database, partial, WAIT_S)
        findings = await _check(partial, copy)
    return Backup(copy, copy.stat().st_size, findings)


def _check_space(database: Path, folder: Path) -> None:
    """A copy that fills the disk of the store would stop the service."""
    log = database.with_name(database.name + "-wal")
    needed = SPARE_BYTES + sum(path.stat().st_size for path in (database, log) if path.exists())
    if shutil.disk_usage(folder).free < needed:
        raise ControlError(f"The disk of {folder} has too little space for a copy: {needed / 1e6:.0f} MB must be free.")


async def _check(partial: Path, copy: Path) -> int:
    """The number of findings in the ledger of the copy. Closing it leaves one file: its log is merged into it."""
    store = SqliteStore(partial)
    try:
        if damage := await store.find_damage():
            raise ControlError(f"The copy {copy} was deleted, because it is damaged: {damage}. Run 'cadenza doctor'.")
        return len(await check.find_violations(store))
    finally:
        await store.close()


@contextlib.contextmanager
def _mapped_errors(copy: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise ControlError(f"{error.filename} exists already: give another name, or move it away.") from None
    except OSError as error:
        raise ControlError(f"The copy {copy} cannot be written: {error.strerror}.") from None
    except sqlite3.Error as error:
        raise ControlError(f"The store could not be copied to {copy}: {error}.") from None
