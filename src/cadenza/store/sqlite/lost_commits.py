"""Commits that were lost with a damaged write-ahead log, found at the start after a process died.

SQLite reads the log up to the first frame that is not sound, and says nothing of the rest. What was there is known from
two places: the index of the log (-shm), which a process that dies leaves as it was, and the number of the newest entry,
which each process notes in its lock file twice a second. After a power failure both may be older than the log, never
newer: so what they say is missing was lost.
"""

import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec
from sqlalchemy import text

from cadenza.core.formats import rfc3339
from cadenza.store.process_locks import ProcessLocks
from cadenza.store.sqlite.write_ahead_log import COPY_LOG
from cadenza.store.statements import Statement

NEWEST = (
    "SELECT COALESCE(MAX(id), 0), COALESCE(MAX(created_at), 0) FROM (SELECT * FROM entries ORDER BY id DESC LIMIT 1)"
)
NEWEST_ENTRY = Statement(text(NEWEST))
LOG_HEAD = 32  # bytes
FRAME_HEAD = 24
MAGIC = {b"\x37\x7f\x06\x82": "<", b"\x37\x7f\x06\x83": ">"}  # and the byte order of the checksums
INDEX_HEAD = struct.Struct("=12x ? x H I 12x 8s 8x")  # is it complete, size of a page, frames, salt; 48 bytes, twice
COPIED = struct.Struct("=I")  # frames that are in the database: behind both heads
WAIT_S = 10.0
NOTE_EVERY_S = 0.5


class LogIndex(NamedTuple):
    """What the index says: how many frames were committed, how many of them are in the database, and of which log."""

    frames: int
    copied: int
    page_bytes: int
    salt: bytes


class LogFile(NamedTuple):
    """The log as a process left it. A log that is not there has no bytes."""

    path: Path
    size: int
    head: bytes


class LostCommits(msgspec.Struct, frozen=True):
    """How the log is damaged, how many entries are missing at least, and when the newest that is left was made."""

    damage: str
    entries: int
    newest_at: int

    @property
    def reason(self) -> str:
        if self.entries <= 0:
            return f"{self.damage}. No entry is known to be missing."
        return f"{self.damage}. Missing entries of the ledger, most of them charges: at least {self.entries:,}."

    @property
    def todo(self) -> str:
        return (
            f"Compare the requests that the service logged since {rfc3339(self.newest_at)} with 'cadenza ledger "
            "export': those that it lacks were not charged. Check the disk, and restore a newer backup if there is one."
        )


def find_lost_commits(database: Path) -> LostCommits | None:
    """Call it before this process opens the store: its files are read beside SQLite. None if no loss is known.

    Another process may start at the same moment, and copy the log or begin another: then only the notes tell.
    """
    locks = ProcessLocks(database)
    if not database.exists() or locks.live():
        return None
    index, log = _read_index(_beside(database, "-shm")), _look(_beside(database, "-wal"))
    if not (index or locks.names()):
        return None
    noted = locks.noted()  # before the newest entry is read, which may be one of the other process
    try:
        with closing(sqlite3.connect(database, timeout=WAIT_S, isolation_level=None)) as connection:
            newest, newest_at = connection.execute(NEWEST).fetchone()
            is_busy, read, _ = connection.execute(COPY_LOG).fetchone()
            # before the connection is closed, which deletes the log
            damage, is_certain = _describe(log, index, max(0, read))
            is_certain = is_certain and not is_busy and _look(log.path).head == log.head
    except (sqlite3.Error, OSError):  # whoever uses the store next says so
        return None
    missing = noted - newest
    return LostCommits(damage, missing, newest_at) if missing > 0 or is_certain else None


def _describe(log: LogFile, index: LogIndex | None, read: int) -> tuple[str, bool]:
    """What is wrong with a log of which SQLite read so many frames, and whether that alone shows a loss."""
    of = f" of {index.frames:,}" if index else ""
    if len(log.head) < LOG_HEAD:
        what = "is cut off in its header" if log.size else "is missing or empty"
        return f"The write-ahead log {what}", index is not None and index.frames > index.copied
    if not _is_sound(log.head):
        return "The header of the write-ahead log is damaged", index is not None and index.frames > index.copied
    if index is None or index.salt != log.head[16:24]:
        return "The write-ahead log is not the one that the store was used with: its salt is another", False
    if index.frames <= read:
        return "The store is older than it was when a process last used it", False
    frame_bytes = FRAME_HEAD + index.page_bytes
    if log.size < LOG_HEAD + index.frames * frame_bytes:
        return f"The write-ahead log is cut off: SQLite read {read:,} frames{of}", True
    places = range(LOG_HEAD + read * frame_bytes, LOG_HEAD + index.frames * frame_bytes, frame_bytes)
    with log.path.open("rb") as file:
        has_salt = all(file.seek(place) and file.read(FRAME_HEAD)[8:16] == index.salt for place in places)
    what = "is damaged" if has_salt else "has another salt"
    return f"The write-ahead log has a frame that {what}: SQLite read {read:,} frames{of}", True


def _beside(database: Path, end: str) -> Path:
    return database.with_name(database.name + end)


def _look(path: Path) -> LogFile:
    try:
        with path.open("rb") as file:
            return LogFile(path, path.stat().st_size, file.read(LOG_HEAD))
    except OSError:
        return LogFile(path, 0, b"")


def _read_index(path: Path) -> LogIndex | None:
    """None if it is not there, or was not complete."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    size = INDEX_HEAD.size
    if len(data) < 2 * size + COPIED.size or data[:size] != data[size : 2 * size]:
        return None
    is_complete, page_bytes, frames, salt = INDEX_HEAD.unpack_from(data)
    [copied] = COPIED.unpack_from(data, 2 * size)
    return LogIndex(frames, copied, page_bytes, salt) if is_complete else None


def _is_sound(head: bytes) -> bool:
    """Whether the magic number and the checksum of a header are right."""
    order = MAGIC.get(head[:4])
    if order is None:
        return False
    first = second = 0
    for one, other in struct.iter_unpack(f"{order}II", head[:24]):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return struct.pack(">II", first, second) == head[24:]
