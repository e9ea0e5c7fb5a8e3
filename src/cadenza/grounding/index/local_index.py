"""The index of the local search engine: one SQLite file with a full-text table, and the only SQL about it.

One process writes at a time, and each file of a folder is one transaction, so a reader sees a file whole or not at all.
A reader opens the file read-only, sees one snapshot of it, and keeps the question in memory. A file that is damaged,
not an index, or made by a later version raises IndexUnusable and is never changed.
"""

import contextlib
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import msgspec

from cadenza.core.content import Content
from cadenza.core.errors import ControlError
from cadenza.grounding.files.ranking import TOKENIZER, match_expression, spaced
from cadenza.grounding.files.records import Section
from cadenza.store.process_locks import ProcessLocks
from cadenza.store.sqlite.files import make_private_file
from cadenza.store.store import WAIT_S

APPLICATION_ID = 0x63647A69  # "cdzi", in the header of the file
MAGIC = b"SQLite format 3\0"
ID_AT = 68  # in the header of every SQLite file, big-endian
ID_BYTES = 4
VERSION = 2
PASSAGE_BITS = 20  # the rowid of a passage is the id of its file, followed by this many bits for its number
FILE_PASSAGES_MAX = (1 << PASSAGE_BITS) - 1
PASSAGE_CHARS_MAX = 8000  # read from one passage, even if another program wrote it
STEPS_PER_CHECK = 2000  # of SQLite's virtual machine, between two checks of the time limit
WRITER = "writer"
ROOT_NAME = "root"  # of the folder "/", which has none
WORD_STARTS = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[0-9])(?=[A-Za-z])")

SCHEMA = (
    """CREATE TABLE folders (
        id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, url TEXT NOT NULL, indexed_at INTEGER NOT NULL
    )""",
    """CREATE TABLE files (
        id INTEGER PRIMARY KEY, folder_id INTEGER NOT NULL REFERENCES folders (id), path TEXT NOT NULL,
        size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, digest BLOB NOT NULL,
        error TEXT NOT NULL, passage_count INTEGER NOT NULL, UNIQUE (folder_id, path)
    )""",
    f"""CREATE VIRTUAL TABLE passages USING fts5 (
        name, text, label UNINDEXED, original UNINDEXED, tokenize = '{TOKENIZER}'
    )""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)
SCRATCH = (  # temporary tables of one reader, with the question in them: in memory
    "PRAGMA temp_store = MEMORY",
    "BEGIN",
    "CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab (main, passages, row)",
    f"CREATE VIRTUAL TABLE temp.scratch USING fts5 (text, tokenize = '{TOKENIZER}')",
    "CREATE VIRTUAL TABLE temp.scratch_terms USING fts5vocab (temp, scratch, instance)",
)


class IndexUnusable(ControlError):
    """The index cannot be used. The message tells the operator why."""


class Folder(msgspec.Struct, frozen=True):
    """An indexed folder. `url` is where its files are published, or empty. `indexed_at` is in milliseconds."""

    id: int
    path: str
    url: str
    indexed_at: int
    files: int
    unreadable: int
    passages: int


class StoredFile(msgspec.Struct, frozen=True):
    """A file as it was indexed. `error` says why it cannot be read, if it cannot."""

    path: str
    size: int
    mtime_ns: int
    digest: bytes
    error: str = ""


class Term(Content, msgspec.Struct, frozen=True):
    """A word of a question, its stem, and the number of passages that have it."""

    word: str
    stem: str
    passages: int


class FoundPassage(Content, msgspec.Struct, frozen=True):
    """A passage with a word of the question, its file, and the stems of the question in it.

    `folder` is the unique name of the folder in the index, and `path` is the path in it.
    """

    file_id: int
    folder: str
    path: str
    base_url: str
    label: str
    text: str
    stems: frozenset[str]


class IndexWriter:
    """The only writer of an index."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._transaction = partial(_transaction, connection)

    def folders(self) -> list[Folder]:
        return _folders(self._connection)

    def put_folder(self, path: str, url: str | None, now_ms: int) -> int:
        """Add or update a folder, and return its id. Without a `url` it keeps the one it has."""
        with self._transaction():
            self._connection.execute(
                "INSERT INTO folders (path, url, indexed_at) VALUES (?1, ifnull(?2, ''), ?3)"
                " ON CONFLICT (path) DO UPDATE SET url = ifnull(?2, url), indexed_at = ?3",
                (path, url, now_ms),
            )
            [(folder_id,)] = self._connection.execute("SELECT id FROM folders WHERE path = ?", (path,))
        return int(folder_id)

    def files(self, folder_id: int) -> dict[str, StoredFile]:
        """The files of a folder, by path."""
        rows = self._connection.execute(
            "SELECT path, size, mtime_ns, digest, error FROM files WHERE folder_id = ? ORDER BY path", (folder_id,)
        )
        return {row[0]: StoredFile(*row) for row in rows}

    def put_file(self, folder_id: int, file: StoredFile, passages: Sequence[Section]) -> None:
        """Replace what is stored of a file, in one transaction."""
        assert len(passages) <= FILE_PASSAGES_MAX
        with self._transaction():
            self._delete_passages(folder_id, file.path)
            [(file_id,)] = self._connection.execute(
                "INSERT INTO files (folder_id, path, size, mtime_ns, digest, error, passage_count)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (folder_id, path) DO UPDATE SET size = excluded.size, mtime_ns = excluded.mtime_ns,"
                " digest = excluded.digest, error = excluded.error, passage_count = excluded.passage_count"
                " RETURNING id",
                (folder_id, file.path, file.size, file.mtime_ns, file.digest, file.error, len(passages)),
            ).fetchall()
            [(folder,)] = self._connection.execute("SELECT path FROM folders WHERE id = ?", (folder_id,))
            name = words_of_path(folder, file.path)
            self._connection.executemany(
                "INSERT INTO passages (rowid, name, text, label, original) VALUES (?, ?, ?, ?, ?)",
                (_passage_row(file_id << PASSAGE_BITS | number, name, one) for number, one in enumerate(passages)),
            )

    def touch_file(self, folder_id: int, file: StoredFile) -> None:
        """Update size and time of a file whose content is the same."""
        with self._transaction():
            self._connection.execute(
                "UPDATE files SET size = ?, mtime_ns = ? WHERE folder_id = ? AND path = ?",
                (file.size, file.mtime_ns, folder_id, file.path),
            )

    def remove_file(self, folder_id: int, path: str) -> None:
        with self._transaction():
            self._delete_passages(folder_id, path)
            self._connection.execute("DELETE FROM files WHERE folder_id = ? AND path = ?", (folder_id, path))

    def remove_folder(self, folder_id: int) -> None:
        """Remove a folder, and erase its text from the index file."""
        for path in self.files(folder_id):
            self.remove_file(folder_id, path)
        with self._transaction():
            self._connection.execute("DELETE FROM folders WHERE id = ?", (folder_id,))
        self._connection.execute("INSERT INTO passages (passages) VALUES ('optimize')")
        self._connection.execute("VACUUM")

    def _delete_passages(self, folder_id: int, path: str) -> None:
        found = self._connection.execute(
            "SELECT id FROM files WHERE folder_id = ? AND path = ?", (folder_id, path)
        ).fetchall()
        for (file_id,) in found:
            first = file_id << PASSAGE_BITS
            self._connection.execute(
                "DELETE FROM passages WHERE rowid BETWEEN ? AND ?", (first, first | FILE_PASSAGES_MAX)
            )


class IndexReader:
    """A snapshot of the index, for one question."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def passages(self) -> int:
        [(count,)] = self._connection.execute("SELECT ifnull(sum(passage_count), 0) FROM files")
        return int(count)

    def terms(self, words: Sequence[str]) -> list[Term]:
        """The stems of the words, each once, with the number of passages that have it. An unknown word has none."""
        stems = dict[str, str]()
        for number, stem in self._stems(words):
            stems.setdefault(stem, words[number])
        return [Term(word, stem, self._frequency(stem)) for stem, word in stems.items()]

    def find(self, wanted: Sequence[Term], terms: Sequence[Term], count: int) -> list[FoundPassage]:
        """Passages that have a wanted term, the best by BM25 first, with those of `terms` that each has."""
        rows = self._connection.execute(
            "SELECT files.id, folders.id, files.path, folders.url, passages.label,"
            " substr(ifnull(passages.original, passages.text), 1, ?1),"
            " passages.name || char(10) || substr(passages.text, 1, ?1)"
            " FROM passages CROSS JOIN files ON files.id = passages.rowid >> ?2"
            " CROSS JOIN folders ON folders.id = files.folder_id"
            " WHERE passages MATCH ?3 ORDER BY passages.rank LIMIT ?4",
            (PASSAGE_CHARS_MAX, PASSAGE_BITS, match_expression([term.word for term in wanted]), count),
        ).fetchall()
        wanted_stems = {term.stem for term in terms}
        stems = [set[str]() for _ in rows]
        for number, stem in self._stems([row[6] for row in rows]):
            if stem in wanted_stems:
                stems[number].add(stem)
        names = folder_names(self._connection.execute("SELECT id, path FROM folders ORDER BY id"))
        return [
            FoundPassage(file_id, names[folder_id], path, url, label, text, frozenset(own))
            for (file_id, folder_id, path, url, label, text, _), own in zip(rows, stems, strict=True)
        ]

    def _stems(self, texts: Sequence[str]) -> list[tuple[int, str]]:
        """The stems of each text, with its number, as the full-text table has them."""
        self._connection.execute("DELETE FROM scratch")
        self._connection.executemany("INSERT INTO scratch (rowid, text) VALUES (?, ?)", enumerate(texts))
        return self._connection.execute("SELECT DISTINCT doc, term FROM scratch_terms ORDER BY doc, term").fetchall()

    def _frequency(self, stem: str) -> int:
        found = self._connection.execute("SELECT doc FROM vocabulary WHERE term = ?", (stem,)).fetchone()
        return int(found[0]) if found else 0


@contextlib.contextmanager
def open_writer(path: Path) -> Iterator[IndexWriter]:
    """Open the index to write, or make it. IndexUnusable if another process writes."""
    with _mapped_errors(path), _only_writer(path):
        if index_exists(path):
            with contextlib.closing(_connect(path, "mode=ro")) as found:
                _check_version(found, path)
        make_private_file(path)
        with contextlib.closing(sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)) as connection:
            with _transaction(connection):
                for statement in () if _version(connection) else SCHEMA:
                    connection.execute(statement)
            for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
                connection.execute(f"PRAGMA {pragma}")
            yield IndexWriter(connection)


@contextlib.contextmanager
def open_reader(path: Path, time_s: float) -> Iterator[IndexReader]:
    """Open the index to read. No file is changed. TimeoutError if the work takes longer than time_s."""
    deadline_s = time.monotonic() + time_s
    with _mapped_errors(path), contextlib.closing(_connect_beside_writer(path)) as connection:
        connection.set_progress_handler(lambda: time.monotonic() > deadline_s, STEPS_PER_CHECK)
        for statement in SCRATCH:
            connection.execute(statement)
        yield IndexReader(connection)


def index_exists(path: Path) -> bool:
    """Whether there is an index. An empty file is none yet."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def why_not_an_index(path: Path) -> str | None:
    """Why this file cannot be an index, as the end of a sentence; None if it looks like one."""
    try:
        with path.open("rb") as file:
            header = file.read(ID_AT + ID_BYTES)
    except OSError as error:
        return f"cannot be opened: {error.strerror}"
    is_index = header.startswith(MAGIC) and int.from_bytes(header[ID_AT:]) == APPLICATION_ID
    return None if is_index else "is not a search index"


def list_folders(path: Path) -> list[Folder]:
    """The folders of an index, oldest first; none if there is no index."""
    if not index_exists(path):
        return []
    with _mapped_errors(path), contextlib.closing(_connect_beside_writer(path)) as connection:
        return _folders(connection)


def _folders(connection: sqlite3.Connection) -> list[Folder]:
    rows = connection.execute(
        "SELECT folders.id, folders.path, url, indexed_at, count(files.id), ifnull(sum(error <> ''), 0),"
        " ifnull(sum(passage_count), 0)"
        " FROM folders LEFT JOIN files ON files.folder_id = folders.id GROUP BY folders.id ORDER BY folders.id"
    )
    return [Folder(*row) for row in rows]


def _passage_row(rowid: int, name: str, passage: Section) -> tuple[int, str, str, str, str | None]:
    """The columns of a passage. The original text is stored only where blanks were added."""
    text = spaced(passage.text)
    return rowid, name, text, passage.label, None if text == passage.text else passage.text


def _connect_beside_writer(path: Path) -> sqlite3.Connection:
    """A read-only connection to what is an index.

    SQLite coordinates with a writer through files beside the index. If they are missing and cannot be made, the folder
    is read-only and there is no writer.
    """
    connection = _connect(path, "mode=ro")
    try:
        _check_version(connection, path)
    except sqlite3.OperationalError as error:
        connection.close()
        is_refused = error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
        if not is_refused or path.with_name(path.name + "-wal").exists():
            raise
        connection = _connect(path, "immutable=1")
        _check_version(connection, path)
    except IndexUnusable:
        connection.close()
        raise
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=WAIT_S, isolation_level=None)


def _version(connection: sqlite3.Connection) -> int:
    [(version,)] = connection.execute("PRAGMA user_version")
    return int(version)


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    [(application_id,)] = connection.execute("PRAGMA application_id")
    version = _version(connection)
    if application_id != APPLICATION_ID:
        raise IndexUnusable(f"{path} is not a search index, and is left as it is. Give another path with --index.")
    if version != VERSION:
        raise IndexUnusable(
            f"The search index {path} was made by another version of Cadenza: it has schema {version}, and this version"
            f" reads schema {VERSION}. Use that version, or move the file away and index again."
        )


@contextlib.contextmanager
def _only_writer(path: Path) -> Iterator[None]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    locks = ProcessLocks(path)
    lock = locks.lock(WRITER)
    if lock is None:
        raise IndexUnusable(f"Another 'cadenza index' is writing to {path}. Try again when it has ended.")
    try:
        yield
    finally:
        locks.unlock(WRITER, lock)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextlib.contextmanager
def _mapped_errors(path: Path) -> Iterator[None]:
    """Turn errors of the driver and of the file system into IndexUnusable. Its message never quotes a value."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            raise TimeoutError from None
        reason = str(error).partition(":")[0]
        raise IndexUnusable(
            f"The search index {path} cannot be used: {reason}. If it is damaged, move it away and index again."
        ) from None
    except OSError as error:
        raise IndexUnusable(f"The search index {path} cannot be opened: {error.strerror}.") from None


def folder_names(folders: Iterable[tuple[int, str]]) -> dict[int, str]:
    """A unique name for each folder, by id: the last part of its path, with a number if another one has it."""
    names = dict[int, str]()
    taken = set[str]()
    for folder_id, path in folders:
        name = unique = _last_part(path)
        number = 1
        while unique in taken:
            number += 1
            unique = f"{name}-{number}"
        taken.add(unique)
        names[folder_id] = unique
    return names


def words_of_path(folder: str, path: str) -> str:
    """The searchable words of a file's path, without its ending; "TravelCosts2026" as it is, and in parts."""
    name = f"{_last_part(folder)}/{path.rpartition('.')[0] or path}"
    names = name.split("/")
    parts = [WORD_STARTS.sub(" ", one) for one in names]
    return spaced(" ".join([*names, *(part for one, part in zip(names, parts, strict=True) if part != one)]))


def _last_part(folder: str) -> str:
    return PurePosixPath(folder).name or ROOT_NAME
