"""Counts the commits that may have changed a key, so that cached keys are read again after these and no others.

`PRAGMA data_version` of the write connection changes with commits of other connections only. It cannot be read while a
thread commits on that connection. But until that commit, no other process can commit: the version of the reader, which
changes with every commit, is then the one that it had when the write began. In the instant between our commit and the
time at which the event loop is notified, nothing is known. Nor is it during a write whose reader was not read, because
nobody asked for the count during the writes before it.
"""

import math
import sqlite3
import time

from cadenza.store.store import Row

ASKED_WRITES = 8  # a write reads the reader's version if the count was asked for during one of this many before it


class ChangeMark:
    """The count, and the last versions of the two connections."""

    def __init__(self) -> None:
        self.changes = 0
        self.known_s = -math.inf  # when the count was last certain, by the monotonic clock
        self._writes_to_read = ASKED_WRITES  # how many of the next writes read the reader's version
        self._others: Row | None = None  # the last version of the write connection
        self._begun: Row | None = None  # the version of the reader when the write in progress began

    def while_idle(self, writer: sqlite3.Cursor | None) -> int | None:
        """The count while no write is in progress; None if it is not known."""
        now_s = time.monotonic()  # before the version is read
        version = _version(writer)
        if version != self._others:
            self._others = version
            self.changes += 1
        if version is None:
            return None
        self.known_s = now_s
        return self.changes

    def begin(self, reader: sqlite3.Cursor | None, writer: sqlite3.Cursor | None) -> None:
        """A write begins, or has just begun. The reader is read first: what it shows is then in the count."""
        self._begun = None
        if self._writes_to_read:
            self._writes_to_read -= 1
            self._begun = _version(reader)
        self.while_idle(writer)

    def while_writing(self, reader: sqlite3.Cursor | None) -> int | None:
        """The count while a write is in progress; None if it is not known."""
        self._writes_to_read = ASKED_WRITES
        return self.changes if self._begun and self._begun == _version(reader) else None

    def end(self, *, is_harmless: bool) -> None:
        """A write ended."""
        self._begun = None
        if not is_harmless:
            self.changes += 1


def _version(connection: sqlite3.Cursor | None) -> Row | None:
    """A number that changes when a connection other than this one has committed.

    None if the connection is not open, or the file is locked.
    """
    if connection is None:
        return None
    try:
        row: Row | None = connection.execute("PRAGMA data_version").fetchone()
    except sqlite3.Error:  # the next statement reports it
        return None
    return row
