"""Copies of a SQLite store, made before a migration, beside the file: cadenza.db.backup-0003-20261115T164151.120Z.

A name has the revision of the schema in the copy, and the time in UTC. Only the newest copies are kept.
"""

import contextlib
import os
import re
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

KEPT_MAX = 3
PAGES_AT_ONCE = 1024
NAME = re.compile(r"\.backup-\w+-(\d{8}T\d{6}\.\d{3}Z)")


def back_up(source: sqlite3.Connection, database: Path, revision: str) -> Path:
    """Copy the store as `source` sees it, and delete all but the newest copies. The caller holds the write lock.

    The copy has its name only once it is complete.
    """
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("-", "").replace(":", "").replace("+0000", "Z")
    copy, partial = (database.with_name(f"{database.name}.backup{end}") for end in (f"-{revision}-{now}", ".partial"))
    partial.unlink(missing_ok=True)
    try:
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with contextlib.closing(sqlite3.connect(partial, isolation_level=None)) as target:
            source.backup(target, pages=PAGES_AT_ONCE)
    except (OSError, sqlite3.Error):
        partial.unlink(missing_ok=True)
        raise
    partial.rename(copy)
    for old in find_backups(database)[:-KEPT_MAX]:
        old.unlink(missing_ok=True)
    return copy


def find_backups(database: Path) -> list[Path]:
    """The copies of this store, oldest first."""
    found = [
        (match[1], path)
        for path in database.parent.iterdir()
        if path.name.startswith(database.name) and (match := NAME.fullmatch(path.name[len(database.name) :]))
    ]
    return [path for _, path in sorted(found)]
