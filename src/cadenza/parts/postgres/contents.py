"""Everything that a Postgres server has of a database, whatever its tables: for a search that trusts no schema.

`all_contents` names each place and value, with a function that reads it.

Tables are read by COPY in binary form, so that a text or blob arrives as it is. The files of the server (its log, the
write-ahead log, pages with deleted rows) are read by functions that only a superuser may call, unless granted.
Errors are `ERRORS`.
"""

import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from urllib.parse import urlsplit

import asyncpg  # type: ignore[import-untyped]
import msgspec

from cadenza.core.errors import ControlError
from cadenza.parts.postgres.connection import Connection, PostgresAddress, PostgresBounds, connect
from cadenza.parts.postgres.errors import DRIVER_ERRORS
from cadenza.store.contents import (
    PIECE_BYTES,
    POSTGRES_LOG,
    POSTGRES_PAGES,
    POSTGRES_TABLES,
    POSTGRES_VIEWS,
    POSTGRES_WAL,
    Feed,
    StoredValue,
    ValueUnreadable,
)

CONNECT_S = 10.0
ERRORS = (OSError, TimeoutError, *DRIVER_ERRORS)
STDERR = "/proc/self/fd/2"  # of a server that does not collect its log; a pipe or socket has the size 0
COLUMNS = """
    SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS name,
           array_agg(quote_ident(a.attname) ORDER BY a.attnum) AS columns
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relkind IN ('r', 'm') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
          AND a.attnum > 0 AND NOT a.attisdropped
    GROUP BY 1 ORDER BY 1"""
FOLDERS = """
    SELECT DISTINCT regexp_replace(pg_relation_filepath(oid), '/[^/]*$', '') AS folder FROM pg_class
    WHERE pg_relation_filepath(oid) LIKE '%/%' ORDER BY 1"""
# pg_settings has what this role may know
SETTINGS = """
    SELECT extract(epoch FROM clock_timestamp())::float8, current_setting('wal_compression'),
           coalesce((SELECT setting FROM pg_settings WHERE name = 'log_directory'), 'log')"""
FILES = """
    SELECT $1 || '/' || name AS path FROM pg_ls_dir($1, true, false) AS name, pg_stat_file($1 || '/' || name, true)
    WHERE NOT isdir AND modification >= to_timestamp($2) ORDER BY 1"""
IS_FILE = "SELECT size > 0 FROM pg_stat_file($1, true)"
READ = "SELECT pg_read_binary_file($1, $2, $3, true)"
VIEW_NAMES = (
    *("pg_stats", "pg_stats_ext", "pg_stat_activity", "pg_stat_statements", "pg_largeobject", "pg_prepared_xacts"),
)
OTHER_FOLDERS = ("base/pgsql_tmp", "pg_stat", "pg_stat_tmp")
FORBIDDEN = "the role of the store's address has no right to read it; the files of the server need a superuser"
COMPRESSED = "Postgres compresses values of more than 2 kB, which are then found only until they are deleted"
NOT_PERMITTED = (
    "The audit needs a database of its own on this Postgres server, and the role may not create one. Run "
    "'ALTER ROLE {} CREATEDB' for the time of the audit."
)
LOST = "Postgres was lost during the audit: {}. When it answers again, drop the database {} of the audit."


async def all_contents(url: str, age_s: float) -> AsyncIterator[StoredValue]:
    """Every value of every table, statistics and running statements, and files that changed in the last `age_s`.

    A deleted row is still in the data files or, if there was no checkpoint since, in the write-ahead log. `ERRORS` if
    the server does not answer.
    """
    bounds = PostgresBounds()
    wide = msgspec.structs.replace(bounds, connect_s=bounds.first_connect_s)
    connection = await connect(PostgresAddress(url), wide)
    copy, read_file = (partial(_guarded, read, connection) for read in (_copy, _read_file))
    try:
        for table, columns in await connection.fetch(COLUMNS):
            for column in columns:
                query = f"SELECT {column} FROM {table}"  # noqa: S608 quoted
                yield StoredValue(POSTGRES_TABLES, f"{table}.{column}", partial(copy, query))
        for view in VIEW_NAMES:
            yield StoredValue(POSTGRES_VIEWS, view, partial(copy, f"SELECT one::text FROM {view} AS one"))  # noqa: S608
        now_s, wal_compression, log_folder = await connection.fetchrow(SETTINGS)
        page_folders = [folder for (folder,) in await connection.fetch(FOLDERS)]
        folders = {
            POSTGRES_LOG: [log_folder],
            POSTGRES_WAL: ["pg_wal"],
            POSTGRES_PAGES: [*page_folders, *OTHER_FOLDERS],
        }
        for place, folder in [(place, folder) for place, found in folders.items() for folder in found]:
            try:
                for (path,) in await connection.fetch(FILES, folder, now_s - age_s):
                    yield StoredValue(place, path, partial(read_file, path))
            except ERRORS as error:
                yield StoredValue(place, folder, reason=explain(error))
        yield StoredValue(POSTGRES_LOG, "standard error of the server", partial(read_file, STDERR))
        if wal_compression != "off":
            yield StoredValue(
                POSTGRES_WAL, "", reason=f"pages in it are compressed (wal_compression = {wal_compression})"
            )
        yield StoredValue(POSTGRES_PAGES, "", reason=COMPRESSED)
    finally:
        await connection.close(timeout=bounds.connect_s)


async def _guarded(
    read: Callable[[Connection, str, Feed], Awaitable[None]], connection: Connection, what: str, feed: Feed
) -> None:
    try:
        await read(connection, what, feed)
    except ERRORS as error:
        raise ValueUnreadable(explain(error)) from None


async def _read_file(connection: Connection, path: str, feed: Feed) -> None:
    """Hand all bytes of a file to `feed`. A file that is gone has none."""
    if path == STDERR and not await connection.fetchval(IS_FILE, path):
        raise ValueUnreadable("it is no file that the server can read")
    offset, piece = 0, bytes(PIECE_BYTES)
    while len(piece) == PIECE_BYTES:
        piece = await connection.fetchval(READ, path, offset, PIECE_BYTES) or b""
        feed(piece)
        offset += len(piece)


async def _copy(connection: Connection, query: str, feed: Feed) -> None:
    """Hand all values of a query to `feed`. A view that this server does not have has none."""
    waiting = bytearray()

    async def take(data: bytes) -> None:
        waiting.extend(data)
        if len(waiting) >= PIECE_BYTES:
            feed(bytes(waiting))
            waiting.clear()

    with contextlib.suppress(asyncpg.UndefinedTableError):
        await connection.copy_from_query(query, output=take, format="binary")
    feed(bytes(waiting))


def explain(error: Exception) -> str:
    """Why something was not read. Of an error only the first line: the others may quote values."""
    return FORBIDDEN if is_forbidden(error) else str(error).partition("\n")[0] or type(error).__name__


@contextlib.asynccontextmanager
async def empty_database(url: str) -> AsyncIterator[str]:
    """The address of a new database on the server, which is dropped when the block ends. ControlError."""
    name = f"cadenza_retention_{secrets.token_hex(6)}"
    try:
        connection = await connect(PostgresAddress(url), PostgresBounds(connect_s=CONNECT_S))
    except ERRORS as error:
        raise ControlError(f"Postgres cannot be reached: {type(error).__name__}.") from None
    try:
        try:
            await connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        except ERRORS as error:
            if is_forbidden(error):
                raise ControlError(NOT_PERMITTED.format(await connection.fetchval("SELECT current_user"))) from None
            raise ControlError(f"Postgres made no database for the audit: {type(error).__name__}.") from None
        try:
            yield urlsplit(url)._replace(path=f"/{name}").geturl()
        finally:
            try:
                await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
            except ERRORS as error:
                raise ControlError(LOST.format(type(error).__name__, name)) from None
    finally:
        connection.terminate()


def is_forbidden(error: Exception) -> bool:
    return isinstance(error, asyncpg.InsufficientPrivilegeError)
