"""The rows of a run: a real SQLite in memory with the schema of a new store.

Nothing waits here: a transaction begins and ends at one moment of the virtual time. After each commit, `on_commit` is
told which rows of the watched tables it changed.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from cadenza.store import schema
from cadenza.store.migrations import find_steps
from cadenza.store.sqlite.store import STRICT_TRIGGERS, SqliteTransaction
from cadenza.store.statements import SQLITE

WATCHED = ("accounts", "debts", "processes", "reserves")
KEYS = {name: itemgetter(*(one.name for one in schema.metadata.tables[name].primary_key)) for name in WATCHED}
NEW_ENTRIES = "SELECT * FROM entries WHERE id > ? ORDER BY id"
CHANGED_TABLE = re.compile(r"\s*(?:INSERT INTO|UPDATE|DELETE FROM)\s+(\w+)")

T = TypeVar("T")
Rows = list[sqlite3.Row]


class RowChange(NamedTuple):
    """A row of a watched table before and after a commit; None where it did not exist."""

    table: str
    before: sqlite3.Row | None
    after: sqlite3.Row | None


Changes = list[RowChange]


class Cursor:
    """Runs the statements of one transaction, and notes which tables they change."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.changed: set[str] = set()

    def execute(self, text: str, values: Any = ()) -> sqlite3.Cursor:
        if table := changed_table(text):
            self.changed.add(table)
        return self._connection.execute(text, values)

    def executemany(self, text: str, rows: Any) -> sqlite3.Cursor:
        if table := changed_table(text):
            self.changed.add(table)
        return self._connection.executemany(text, rows)


class Database:
    """One database. `on_commit` is called with what each commit changed."""

    def __init__(self) -> None:
        self.on_commit: list[Callable[[Changes], None]] = []
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        _migrated().backup(self._connection)
        for pragma in ("foreign_keys = ON", STRICT_TRIGGERS):
            self._connection.execute(f"PRAGMA {pragma}")
        self._checks = self._connection.cursor()
        self._checks.row_factory = sqlite3.Row
        self._last_entry = 0
        self._known: dict[str, dict[Any, sqlite3.Row]] = {}
        self._read_known()

    def read(self, work: Callable[[Any], T], begin: Callable[[Any], SqliteTransaction] = SqliteTransaction) -> T:
        return work(begin(self._connection))

    def transact(
        self,
        work: Callable[[Any], T],
        begin: Callable[[Any], SqliteTransaction] = SqliteTransaction,
        before_commit: Callable[[], None] = lambda: None,
    ) -> tuple[T, SqliteTransaction]:
        """Run `work` in a transaction that `begin` makes. `before_commit` may refuse what changes something."""
        cursor = Cursor(self._connection)
        tx = begin(cursor)
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            done = work(tx)
            if cursor.changed:
                before_commit()
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        changes = [change for name in sorted(cursor.changed) for change in self._changes(name)]
        for see in self.on_commit:
            see(changes)
        return done, tx

    def rows(self, table: str, **where: Any) -> Rows:
        """The rows of a table that have these values, in the order of their insertion."""
        if (known := self._known.get(table)) is None:
            return self._read(table, **where)
        if not where:
            return [*known.values()]
        [(name, value)] = where.items()
        return [row for row in known.values() if row[name] == value]

    def copy(self) -> sqlite3.Connection:
        """A database of its own with the same rows."""
        copied = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.backup(copied)
        return copied

    def restore(self, copied: sqlite3.Connection) -> None:
        """Undo everything that was committed since `copy`."""
        copied.backup(self._connection)
        self._read_known()

    def _read(self, table: str, **where: Any) -> Rows:
        return self._checks.execute(_select(table, *where), [*where.values()]).fetchall()

    def _read_known(self) -> None:
        self._known = {name: {KEYS[name](row): row for row in self._read(name)} for name in WATCHED}
        [[self._last_entry]] = self._checks.execute("SELECT COALESCE(MAX(id), 0) FROM entries").fetchall()

    def _changes(self, name: str) -> Iterator[RowChange]:
        if name == "entries":
            for row in self._checks.execute(NEW_ENTRIES, [self._last_entry]).fetchall():
                self._last_entry = row["id"]
                yield RowChange(name, None, row)
        elif name in self._known:
            before = self._known[name]
            now = self._known[name] = {KEYS[name](row): row for row in self._read(name)}
            for key in [*now, *(key for key in before if key not in now)]:
                if before.get(key) != now.get(key):
                    yield RowChange(name, before.get(key), now.get(key))


@cache
def changed_table(text: str) -> str:
    """The table that a statement changes, if it changes one."""
    found = CHANGED_TABLE.match(text)
    return found[1] if found else ""


@cache
def _select(table: str, *names: str) -> str:
    where = " AND ".join(f"{name} = ?" for name in names)
    return f"SELECT * FROM {table} WHERE {where or '1'} ORDER BY rowid"


@cache
def _migrated() -> sqlite3.Connection:
    """A new database, to copy."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    tx = SqliteTransaction(connection)
    find_steps(tx).run(tx, SQLITE)
    return connection
