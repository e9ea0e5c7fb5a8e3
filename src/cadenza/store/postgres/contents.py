"""Everything that a Postgres server has of a database, whatever its tables: for a search that trusts no schema.

Tables are read by COPY in binary form, so that a text or blob arrives as it is. The files of the server (its log, the
write-ahead log, pages with deleted rows) are read by functions that only a superuser may call, unless granted.
Errors are `ERRORS`.
"""

import contextlib
from collections.abc import AsyncIterator, Callable

import asyncpg  # type: ignore[import-untyped]
import msgspec

from cadenza.store.postgres.connection import Connection, PostgresAddress, PostgresBounds, connect
from cadenza.store.postgres.errors import DRIVER_ERRORS

PIECE_BYTES = 1024 * 1024
ERRORS = (OSError, TimeoutError, *DRIVER_ERRORS)
STDERR = "/proc/self/fd/2"  # of a server that does not collect its log; a pipe or socket has the size 0
TABLES = """
    SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS name,
           array_agg(quote_ident(a.attname) ORDER BY a.attnum) AS columns
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relkind IN ('r', 'm') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
          AND a.attnum > 0 AND NOT a.attisdropped
    GROUP BY 1 ORDER BY 1"""
FOLDERS = """
    SELECT DISTINCT regexp_replace(pg_relation_filepath(oid), '/[^/]*$', '') AS folder FROM pg_class
    WHERE pg_relation_filepath(oid) LIKE '%/%' ORDER BY 1"""
SETTINGS = """
    SELECT extract(epoch FROM clock_timestamp())::float8, current_setting('wal_compression'),
           coalesce((SELECT setting FROM pg_settings WHERE name = 'log_directory'), 'log'),
           current_setting('log_destination')"""  # pg_settings has what this role may know
FILES = """
    SELECT $1 || '/' || name AS path FROM pg_ls_dir($1, true, false) AS name, pg_stat_file($1 || '/' || name, true)
    WHERE NOT isdir AND modification >= to_timestamp($2) ORDER BY 1"""
IS_FILE = "SELECT size > 0 FROM pg_stat_file($1, true)"
READ = "SELECT pg_read_binary_file($1, $2, $3, true)"


class PostgresTable(msgspec.Struct, frozen=True):
    """A table with its columns. All names are quoted."""

    name: str
    columns: list[str]


class PostgresFacts(msgspec.Struct, frozen=True):
    """The clock of the server, and the settings that say what its files are."""

    now_s: float
    wal_compression: str
    log_folder: str
    log_destination: str


class PostgresContents:
    """What one connection can read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def tables(self) -> list[PostgresTable]:
        return [PostgresTable(*record) for record in await self._connection.fetch(TABLES)]

    async def facts(self) -> PostgresFacts:
        return PostgresFacts(*await self._connection.fetchrow(SETTINGS))

    async def page_folders(self) -> list[str]:
        """Where the tables of this database are."""
        return [folder for (folder,) in await self._connection.fetch(FOLDERS)]

    async def files(self, folder: str, since_s: float) -> list[str]:
        """The files that changed after `since_s` of the server's clock. None if there is no such folder."""
        return [path for (path,) in await self._connection.fetch(FILES, folder, since_s)]

    async def has_file(self, path: str) -> bool:
        return bool(await self._connection.fetchval(IS_FILE, path))

    async def read_file(self, path: str, feed: Callable[[bytes], None]) -> None:
        """Hand all bytes of a file to `feed`. A file that is gone has none."""
        offset, piece = 0, bytes(PIECE_BYTES)
        while len(piece) == PIECE_BYTES:
            piece = await self._connection.fetchval(READ, path, offset, PIECE_BYTES) or b""
            feed(piece)
            offset += len(piece)

    async def copy(self, query: str, feed: Callable[[bytes], None]) -> None:
        """Hand all values of a query to `feed`."""
        waiting = bytearray()

        async def take(data: bytes) -> None:
            waiting.extend(data)
            if len(waiting) >= PIECE_BYTES:
                feed(bytes(waiting))
                waiting.clear()

        await self._connection.copy_from_query(query, output=take, format="binary")
        feed(bytes(waiting))


@contextlib.asynccontextmanager
async def open_postgres_contents(url: str) -> AsyncIterator[PostgresContents]:
    bounds = PostgresBounds()
    wide = msgspec.structs.replace(bounds, connect_s=bounds.first_connect_s)
    connection = await connect(PostgresAddress(url), wide)
    try:
        yield PostgresContents(connection)
    finally:
        await connection.close(timeout=bounds.connect_s)


def is_missing(error: Exception) -> bool:
    """Whether a table or view does not exist."""
    return isinstance(error, asyncpg.UndefinedTableError)


def is_forbidden(error: Exception) -> bool:
    return isinstance(error, asyncpg.InsufficientPrivilegeError)
