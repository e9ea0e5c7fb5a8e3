"""Everything in a SQLite file, whatever its tables: for a search that trusts no schema."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from cadenza.store.store import WAIT_S, Row

SIGNATURE = b"SQLite format 3\0"
IS_HIDDEN = 1  # of a virtual table: not one of SELECT *
TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' UNION ALL SELECT 'sqlite_master' ORDER BY 1"


class TableContents(msgspec.Struct, frozen=True):
    """A table with all of its rows. Texts are bytearrays and blobs are bytes. `rows` may raise sqlite3.Error."""

    name: str
    columns: list[str]
    rows: Iterator[Row]


def is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(SIGNATURE)) == SIGNATURE
    except OSError:
        return False


@contextlib.contextmanager
def open_contents(database: Path) -> Iterator[Iterator[TableContents]]:
    """All tables, beside a service that writes. Read each to its end before the next. sqlite3.Error.

    A file that nobody uses, such as a backup, has no write-ahead log and gets none by this.
    """
    is_in_use = Path(f"{database}-wal").exists()
    url = f"{database.absolute().as_uri()}?mode=ro{'' if is_in_use else '&immutable=1'}"
    with contextlib.closing(sqlite3.connect(url, timeout=WAIT_S, isolation_level=None, uri=True)) as connection:
        names = [name for (name,) in connection.execute(TABLES)]
        connection.text_factory = bytearray  # as stored, even if it is not UTF-8
        yield (_table(connection, name) for name in names)


def _table(connection: sqlite3.Connection, name: str) -> TableContents:
    quoted = name.replace('"', '""')
    found = connection.execute(f'PRAGMA table_xinfo("{quoted}")')
    columns = [bytes(column).decode() for _, column, *_, hidden in found if hidden != IS_HIDDEN]
    return TableContents(name, columns, _rows(connection, f'SELECT * FROM "{quoted}"'))  # noqa: S608 quoted


def _rows(connection: sqlite3.Connection, query: str) -> Iterator[Row]:
    yield from connection.execute(query)
