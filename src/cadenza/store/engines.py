"""A reader and a writer for each kind of database; `Database` is their only user.

A reader opens no transaction: each statement sees the newest committed state. A SQLite writer is the one write
connection of its process and takes the write lock at BEGIN, so that no transaction has to upgrade a lock later.
The drivers' own transaction handling is off (`isolation_level=None`): what is said here is what runs.
"""

import contextlib
import errno
import os
import stat
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

SQLITE_READERS = 4
POSTGRES_CONNECTIONS = 8
EVERY_PRAGMA = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON")
READER_PRAGMA = "query_only=ON"
WRITER_PRAGMA = "recursive_triggers=ON"  # so that INSERT OR REPLACE meets the triggers that refuse a delete


def sqlite_engines(path: Path, wait_s: float) -> tuple[AsyncEngine, AsyncEngine]:
    reader = _sqlite_engine(path, wait_s, SQLITE_READERS, READER_PRAGMA)
    writer = _sqlite_engine(path, wait_s, 1, WRITER_PRAGMA)
    event.listen(writer.sync_engine, "begin", _begin_immediate)
    return reader, writer


def postgres_engines(url: URL, wait_s: float) -> tuple[AsyncEngine, AsyncEngine]:
    """Both share one pool. A wait for a lock is bounded as it is on SQLite."""
    settings = {"application_name": "cadenza", "lock_timeout": f"{round(wait_s * 1000)}ms"}
    writer = create_async_engine(
        _asyncpg_url(url),
        connect_args={"timeout": wait_s, "server_settings": settings},
        pool_size=POSTGRES_CONNECTIONS,
        max_overflow=0,
        pool_timeout=wait_s,
        hide_parameters=True,
    )
    return writer.execution_options(isolation_level="AUTOCOMMIT"), writer


def _asyncpg_url(url: URL) -> URL:
    """The libpq word `sslmode` is `ssl` to asyncpg."""
    mode = url.query.get("sslmode")
    if isinstance(mode, str):
        url = url.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})
    return url.set(drivername="postgresql+asyncpg")


def _sqlite_engine(path: Path, wait_s: float, connections: int, own_pragma: str) -> AsyncEngine:
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=str(path)),
        connect_args={"isolation_level": None, "timeout": wait_s},
        pool_size=connections,
        max_overflow=0,
        pool_timeout=wait_s,
        hide_parameters=True,
        skip_autocommit_rollback=own_pragma == READER_PRAGMA,
    )
    _prepare(engine.sync_engine, path, own_pragma)
    return engine


def _prepare(engine: Engine, path: Path, own_pragma: str) -> None:
    """Every connection: the file is made before it, and the pragmas are set on it."""

    @event.listens_for(engine, "do_connect")
    def prepare(*_: object) -> None:
        make_file(path)

    @event.listens_for(engine, "connect")
    def configure(connection: DBAPIConnection, _: object) -> None:
        cursor = connection.cursor()
        for pragma in (*EVERY_PRAGMA, own_pragma):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def make_file(path: Path) -> None:
    """Owner only: folder 0700, file 0600, and SQLite gives its side files the mode of the file.

    A file that is there is never opened here: closing it again would drop the locks this process holds on it.
    Nor is the driver left to find out that it cannot be opened: it would leave a thread behind.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a file")
    if stat.S_IMODE(mode) != 0o600:
        path.chmod(0o600)
    if not os.access(path, os.R_OK | os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
