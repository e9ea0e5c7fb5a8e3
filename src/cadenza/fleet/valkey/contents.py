"""Everything that a Valkey server has: keys and values of all databases, and what it remembers of commands.

ValkeyUnreachable if it does not answer, or refuses to. It is asked for a few hundred items at a time.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import hiredis

from cadenza.core.errors import ControlError
from cadenza.fleet.valkey.connection import (
    PREFIX,
    Answer,
    Part,
    ValkeyAddress,
    ValkeyConnection,
    ValkeyUnreachable,
    ask,
    error_code,
    open_connection,
)
from cadenza.store.contents import PIECE_BYTES, Feed, StoredValue, ValueUnreadable, read_path

ANSWER_S = 30.0
CONNECT_S = 10.0
ITEMS_AT_ONCE = 500
SCANS = {b"hash": "HSCAN", b"set": "SSCAN", b"zset": "ZSCAN"}
REMEMBERED: dict[str, tuple[Part, ...]] = {
    "the slow log": ("SLOWLOG", "GET", -1),
    "the log of refused commands": ("ACL", "LOG", 1000),
    "the list of clients": ("CLIENT", "LIST"),
    "functions": ("FUNCTION", "LIST", "WITHCODE"),
}
SETTINGS = ("dir", "dbfilename", "appenddirname", "logfile", "rdbcompression")
NO_EMPTY_DATABASE = (
    "The audit needs a database of Valkey of its own, and none of the databases 1 to 15 is empty. "
    "Empty one of them, or run the audit with a config whose [shared_state] names another server."
)
LOST = "Valkey was lost during the audit: {}. When it answers again, empty its database {}, which had no keys."

KEYS = "Valkey keys and values"
MEMORY = "Valkey slow log, clients and functions"
FILES = "Valkey snapshot, append-only files and log"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class ValkeyContents:
    """What one connection can read."""

    def __init__(self, connection: ValkeyConnection) -> None:
        self._connection = connection

    async def facts(self) -> dict[str, str]:
        """INFO, and `db0`, `db1`, … for each database that has keys."""
        info = await self._ask("INFO", "everything")
        return dict(re.findall(r"^(\w+):(.*?)\r?$", bytes(info).decode(errors="replace"), re.MULTILINE))

    async def settings(self) -> dict[str, str]:
        """Where its files are."""
        return {name: await self._setting(name) for name in SETTINGS}

    async def keys(self, database: int) -> AsyncIterator[list[bytes]]:
        """All keys of a database, which is selected until the next call. A key may come twice."""
        await self._ask("SELECT", database)
        cursor: Part = 0
        while True:
            cursor, keys = await self._ask("SCAN", cursor, "COUNT", ITEMS_AT_ONCE)
            yield keys
            if int(cursor) == 0:
                return

    async def read(self, key: bytes, feed: Feed) -> None:
        """Hand the value of a key to `feed`. One that is gone has none."""
        kind = await self._ask("TYPE", key)
        if kind == b"string":
            await self._read_string(key, feed)
        elif kind == b"list":
            await self._read_list(key, feed)
        elif kind == b"stream":
            await self._read_stream(key, feed)
        elif kind in SCANS:
            cursor: Part = 0
            while True:
                cursor, items = await self._ask(SCANS[kind], key, cursor, "COUNT", ITEMS_AT_ONCE)
                feed(flat(items))
                if int(cursor) == 0:
                    return
        elif kind != b"none":
            feed(flat(await self._ask("DUMP", key)))  # of a module: as the server would store it

    async def read_remembered(self, name: str, feed: Feed) -> None:
        """Hand one of REMEMBERED to `feed`."""
        feed(flat(await self._ask(*REMEMBERED[name])))

    async def delete(self, database: int, prefix: str) -> None:
        """Delete the keys of a database that begin with `prefix`."""
        async for keys in self.keys(database):
            if ours := [key for key in keys if key.startswith(prefix.encode())]:
                await self._ask("DEL", *ours)

    async def _read_string(self, key: bytes, feed: Feed) -> None:
        start = 0
        while piece := await self._ask("GETRANGE", key, start, start + PIECE_BYTES - 1):
            feed(piece)
            start += len(piece)

    async def _read_list(self, key: bytes, feed: Feed) -> None:
        start = 0
        while items := await self._ask("LRANGE", key, start, start + ITEMS_AT_ONCE - 1):
            feed(flat(items))
            start += len(items)

    async def _read_stream(self, key: bytes, feed: Feed) -> None:
        after = b"-"
        while items := await self._ask("XRANGE", key, after, "+", "COUNT", ITEMS_AT_ONCE):
            feed(flat(items))
            after = b"(" + items[-1][0]

    async def _setting(self, name: str) -> str:
        found = await self._ask("CONFIG", "GET", name)
        return "".join(bytes(value).decode(errors="replace") for value in found.values())

    async def _ask(self, *parts: Part) -> Answer:
        answer = await ask(self._connection.send, *parts)
        if answer is None:
            raise ValkeyUnreachable("no answer in time")
        if isinstance(answer, hiredis.ReplyError):
            raise ValkeyUnreachable(error_code(answer))
        return answer


@asynccontextmanager
async def open_valkey_contents(address: ValkeyAddress) -> AsyncIterator[ValkeyContents]:
    make = partial(ValkeyConnection, ANSWER_S, lambda _: None, lambda _: None)
    try:
        async with asyncio.timeout(CONNECT_S):
            connection = await open_connection(address, make)
    except TimeoutError:
        raise ValkeyUnreachable("no connection in time") from None
    try:
        yield ValkeyContents(connection)
    finally:
        connection.end("done")


@asynccontextmanager
async def empty_database(url: str) -> AsyncIterator[str]:
    """The address of a database of the server that has no keys. When the block ends, ours are deleted. ControlError."""
    try:
        async with open_valkey_contents(ValkeyAddress.parse(url)) as contents:
            facts = await contents.facts()
    except ValkeyUnreachable as error:
        raise ControlError(f"Valkey cannot be used: {error}.") from None
    for number in range(15, 0, -1):  # 0 is left to others
        own = _with_database(url, number)
        address = ValkeyAddress.parse(own)
        with suppress(ValkeyUnreachable):  # there are fewer databases, or this one is not permitted
            if f"db{number}" not in facts:
                async with open_valkey_contents(address):
                    break
    else:
        raise ControlError(NO_EMPTY_DATABASE)
    try:
        yield own
    finally:
        try:
            async with open_valkey_contents(address) as contents:
                await contents.delete(number, PREFIX)
        except ValkeyUnreachable as error:
            raise ControlError(LOST.format(error, number)) from None


def _with_database(url: str, number: int) -> str:
    """The same server, with another database."""
    parts = urlsplit(url)
    if parts.scheme != "unix":
        return parts._replace(path=f"/{number}").geturl()
    return parts._replace(query=urlencode({**dict(parse_qsl(parts.query)), "db": str(number)})).geturl()


async def all_contents(url: str) -> AsyncIterator[StoredValue]:
    """All keys of all databases, what the server remembers of commands, and its files. ValkeyUnreachable."""
    address = ValkeyAddress.parse(url)
    async with open_valkey_contents(address) as contents:
        facts = await contents.facts()
        if facts.get("cluster_enabled") == "1":
            yield StoredValue(KEYS, "", reason="the other nodes of the cluster")
        for database in [int(name[2:]) for name in facts if name.startswith("db") and name[2:].isdecimal()]:
            async for found in contents.keys(database):
                for key in found:
                    where = f"database {database}, key {ascii(key.decode(errors='replace'))[1:-1]}"
                    yield StoredValue(KEYS, where, partial(_guarded, partial(contents.read, key)))
        for name in REMEMBERED:
            yield StoredValue(MEMORY, name, partial(_guarded, partial(contents.read_remembered, name)))
        try:
            settings = await contents.settings()
        except ValkeyUnreachable as error:
            yield StoredValue(FILES, "", reason=f"where they are is not known: {error}")
            return
    folder = Path(settings["dir"])
    if not (address.path or address.host in LOOPBACK) or not folder.is_dir():  # noqa: ASYNC240 never waits
        yield StoredValue(FILES, "", reason=f"on another machine or not visible from here: {folder}")
        return
    appended = (folder / settings["appenddirname"]).glob("*") if settings["appenddirname"] else ()
    for path in (folder / settings["dbfilename"], *appended):
        yield StoredValue(FILES, path.name, partial(read_path, path))
        if path.exists() and settings["rdbcompression"] == "yes":
            yield StoredValue(FILES, path.name, reason="texts of more than 20 bytes are compressed (rdbcompression)")
    if settings["logfile"]:
        yield StoredValue(FILES, "log", partial(read_path, folder / settings["logfile"]))
    else:
        yield StoredValue(FILES, "", reason="its log goes to its standard output")


async def _guarded(read: Callable[[Feed], Awaitable[None]], feed: Feed) -> None:
    try:
        await read(feed)
    except ValkeyUnreachable as error:
        raise ValueUnreadable(str(error)) from None


def flat(answer: Answer) -> bytes:
    """All texts of an answer, one after the other, each with an end."""
    if isinstance(answer, bytes):
        return answer + b"\0"
    if isinstance(answer, dict):
        return b"".join(flat(key) + flat(value) for key, value in answer.items())
    if isinstance(answer, (list, tuple, set, frozenset)):
        return b"".join(map(flat, answer))
    return str(answer).encode() + b"\0"
