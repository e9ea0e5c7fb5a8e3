"""The places of other servers: Postgres and Valkey. What they do not let us read is in `skipped`."""

import ipaddress
import time
from collections.abc import Sequence
from pathlib import Path

from cadenza.audit.needles import Needles
from cadenza.audit.places import CLOCKS_S, add_path
from cadenza.audit.search import PlaceSearch, Searched
from cadenza.fleet.valkey.connection import ValkeyAddress, ValkeyUnreachable
from cadenza.fleet.valkey.contents import REMEMBERED, ValkeyContents, open_valkey_contents
from cadenza.store.postgres.contents import (
    ERRORS,
    STDERR,
    PostgresContents,
    PostgresTable,
    is_forbidden,
    is_missing,
    open_postgres_contents,
)

POSTGRES_TABLES = "Postgres tables, every value"
POSTGRES_VIEWS = "Postgres statistics and running statements"
POSTGRES_LOG = "Postgres server log"
POSTGRES_WAL = "Postgres write-ahead log"
POSTGRES_PAGES = "Postgres data files, with deleted rows"
VIEWS = ("pg_stats", "pg_stats_ext", "pg_stat_activity", "pg_stat_statements", "pg_largeobject", "pg_prepared_xacts")
OTHER_FOLDERS = ("base/pgsql_tmp", "pg_stat", "pg_stat_tmp")
FORBIDDEN = "the role of the store's address has no right to read it"
FILES_FORBIDDEN = "only a superuser, or who may execute pg_ls_dir, pg_stat_file and pg_read_binary_file, may read it"
VALKEY_KEYS = "Valkey keys and values"
VALKEY_REMEMBERED = "Valkey slow log, clients and functions"
VALKEY_FILES = "Valkey snapshot, append-only files and log"


async def search_postgres(needles: Needles, url: str) -> list[Searched]:
    """Every value of every table, statistics and running statements; log, write-ahead log and data files if permitted.

    A deleted row is still in the data files or, if there was no checkpoint since, in the write-ahead log. `ERRORS` if
    the server does not answer.
    """
    async with open_postgres_contents(url) as contents:
        facts = await contents.facts()
        since_s = facts.now_s - (time.time() - needles.made_s) - CLOCKS_S  # by the clock of the server
        log, wal, pages = (PlaceSearch(needles, place) for place in (POSTGRES_LOG, POSTGRES_WAL, POSTGRES_PAGES))
        await _add_folders(log, contents, [facts.log_folder], since_s)
        await _add_standard_error(log, contents, facts.log_destination)
        await _add_folders(wal, contents, ["pg_wal"], since_s)
        if facts.wal_compression != "off":
            wal.skip(f"pages in it are compressed (wal_compression = {facts.wal_compression})")
        await _add_folders(pages, contents, [*await contents.page_folders(), *OTHER_FOLDERS], since_s)
        pages.skip("Postgres compresses values of more than 2 kB, which are then found only until they are deleted")
        tables, views = await _search_tables(needles, contents), await _search_views(needles, contents)
    return [tables, views, log.result(), wal.result(), pages.result()]


async def _search_tables(needles: Needles, contents: PostgresContents) -> Searched:
    search = PlaceSearch(needles, POSTGRES_TABLES)
    for table in await contents.tables():
        try:
            await _add_table(search, needles, contents, table)
        except ERRORS as error:
            search.skip(_reason(error, FORBIDDEN), table.name)
    return search.result()


async def _add_table(search: PlaceSearch, needles: Needles, contents: PostgresContents, table: PostgresTable) -> None:
    """Read a table once, and column by column only if something is found."""
    whole = PlaceSearch(needles, search.place)
    with whole.feeding() as feed:
        await contents.copy(f"TABLE {table.name}", feed)
    if not whole.result().hits:
        search.add_result(whole.result())
        return
    for column in table.columns:
        with search.feeding(f"{table.name}.{column}") as feed:
            await contents.copy(f"SELECT {column} FROM {table.name}", feed)  # noqa: S608 quoted


async def _search_views(needles: Needles, contents: PostgresContents) -> Searched:
    search = PlaceSearch(needles, POSTGRES_VIEWS)
    for view in VIEWS:
        try:
            with search.feeding(view) as feed:
                await contents.copy(f"SELECT one::text FROM {view} AS one", feed)  # noqa: S608 our own names
        except ERRORS as error:
            if not is_missing(error):
                search.skip(_reason(error, FORBIDDEN), view)
    return search.result()


async def _add_standard_error(search: PlaceSearch, contents: PostgresContents, destination: str) -> None:
    """The log of a server that does not collect it is where its standard error goes."""
    try:
        if await contents.has_file(STDERR):
            with search.feeding("standard error of the server") as feed:
                await contents.read_file(STDERR, feed)
        elif not search.result().size_bytes:
            search.skip(f"it is in no file that the server can read (log_destination = {destination})")
    except ERRORS as error:
        search.skip(_reason(error, FILES_FORBIDDEN))


async def _add_folders(search: PlaceSearch, contents: PostgresContents, folders: Sequence[str], since_s: float) -> None:
    for folder in folders:
        try:
            for path in await contents.files(folder, since_s):
                with search.feeding(path) as feed:
                    await contents.read_file(path, feed)
        except ERRORS as error:
            search.skip(_reason(error, FILES_FORBIDDEN), folder)


def _reason(error: Exception, forbidden: str) -> str:
    """The first line of an error: the others may quote values."""
    return forbidden if is_forbidden(error) else str(error).partition("\n")[0] or type(error).__name__


async def search_valkey(needles: Needles, url: str) -> list[Searched]:
    """All databases of the server, what it remembers of commands, and its files. ValkeyUnreachable if it is down."""
    address = ValkeyAddress.parse(url)
    keys, remembered, files = (PlaceSearch(needles, place) for place in (VALKEY_KEYS, VALKEY_REMEMBERED, VALKEY_FILES))
    async with open_valkey_contents(address) as contents:
        await _add_keys(keys, contents)
        for name in REMEMBERED:
            try:
                remembered.add(await contents.remembered(name), name)
            except ValkeyUnreachable as error:
                remembered.skip(str(error), name)
        try:
            settings = await contents.settings()
        except ValkeyUnreachable as error:
            files.skip(f"where they are is not known: {error}")
        else:
            _add_files(files, settings, is_local=_is_local(address))
    return [keys.result(), remembered.result(), files.result()]


async def _add_keys(search: PlaceSearch, contents: ValkeyContents) -> None:
    facts = await contents.facts()
    if facts.get("cluster_enabled") == "1":
        search.skip("the other nodes of the cluster")
    for database in [int(name[2:]) for name in facts if name.startswith("db") and name[2:].isdecimal()]:
        async for found in contents.keys(database):
            for key in found:
                await _add_key(search, contents, database, key)


async def _add_key(search: PlaceSearch, contents: ValkeyContents, database: int, key: bytes) -> None:
    name = ascii(key.decode(errors="replace"))[1:-1]
    if search.add(key, f"the name of a key of database {database}"):
        name = "with a needle in its name"  # the rest of it may be content
    where = f"database {database}, key {name}"
    try:
        with search.feeding(where) as feed:
            await contents.read(key, feed)
    except ValkeyUnreachable as error:
        search.skip(str(error), where)


def _add_files(search: PlaceSearch, settings: dict[str, str], *, is_local: bool) -> None:
    folder = Path(settings["dir"])
    if not is_local or not folder.is_dir():
        search.skip(f"on another machine or not visible from here: {folder}")
        return
    snapshot = folder / settings["dbfilename"]
    appended = sorted((folder / settings["appenddirname"]).glob("*")) if settings["appenddirname"] else []
    for path in [snapshot, *appended]:
        add_path(search, path, path.name)
        if path.exists() and settings["rdbcompression"] == "yes":
            search.skip("texts of more than 20 bytes are compressed in it (rdbcompression)", path.name)
    if settings["logfile"]:
        add_path(search, folder / settings["logfile"], "log")
    else:
        search.skip("its log goes to its standard output")


def _is_local(address: ValkeyAddress) -> bool:
    try:
        return bool(address.path) or address.host == "localhost" or ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return False
