"""Everything that a Valkey server has: keys and values of all databases, and what it remembers of commands.

ValkeyUnreachable if it does not answer, or refuses to. It is asked for a few hundred items at a time.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

from cadenza.core.errors import ControlError
from cadenza.parts.valkey.connection import (
    PREFIX,
    Answer,
    Part,
    ValkeyAddress,
    ValkeyConnection,
    ValkeyUnreachable,
    connected,
)
from cadenza.store.contents import PIECE_BYTES, Feed, StoredValue, ValueUnreadable, read_path

ANSWER_S = 30.0
CONNECT_S = 10.0
ITEMS_AT_ONCE = 500
RANGES = {b"string": ("GETRANGE", PIECE_BYTES), b"list": ("LRANGE", ITEMS_AT_ONCE)}
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


async def read_value(connection: ValkeyConnection, key: bytes, feed: Feed) -> None:
    """Hand the value of a key of the selected database to `feed`. One that is gone has none."""
    kind = await connection.ask("TYPE", key)
    if kind in RANGES:
        command, count = RANGES[kind]
        start = 0
        while found := await connection.ask(command, key, start, start + count - 1):
            feed(found if kind == b"string" else flat(found))
            start += len(found)
    elif kind in SCANS:
        async for found in scan(connection, SCANS[kind], key):
            feed(flat(found))
    elif kind == b"stream":
        after = b"-"
        while entries := await connection.ask("XRANGE", key, after, "+", "COUNT", ITEMS_AT_ONCE):
            feed(flat(entries))
            after = b"(" + entries[-1][0]
    elif kind != b"none":
        feed(flat(await connection.ask("DUMP", key)))  # of a module: as the server would store it


async def read_remembered(connection: ValkeyConnection, name: str, feed: Feed) -> None:
    """Hand one of REMEMBERED to `feed`."""
    feed(flat(await connection.ask(*REMEMBERED[name])))


async def scan(connection: ValkeyConnection, *command: Part) -> AsyncIterator[list[bytes]]:
    """What a command of the SCAN family finds. An item may come twice."""
    cursor: Part = 0
    while True:
        cursor, found = await connection.ask(*command, cursor, "COUNT", ITEMS_AT_ONCE)
        yield found
        if int(cursor) == 0:
            return


def open_contents(address: ValkeyAddress) -> AbstractAsyncContextManager[ValkeyConnection]:
    return connected(address, ANSWER_S, CONNECT_S)


@asynccontextmanager
async def empty_database(url: str) -> AsyncIterator[str]:
    """The address of a database of the server that has no keys. When the block ends, ours are deleted. ControlError."""
    try:
        async with open_contents(ValkeyAddress.parse(url)) as connection:
            facts = await connection.facts()
    except ValkeyUnreachable as error:
        raise ControlError(f"Valkey cannot be used: {error}.") from None
    for number in range(15, 0, -1):  # 0 is left to others
        own = _with_database(url, number)
        address = ValkeyAddress.parse(own)
        with suppress(ValkeyUnreachable):  # there are fewer databases, or this one is not permitted
            if f"db{number}" not in facts:
                async with open_contents(address):
                    break
    else:
        raise ControlError(NO_EMPTY_DATABASE)
    try:
        yield own
    finally:
        try:
            async with open_contents(address) as connection:
                async for keys in scan(connection, "SCAN"):
                    if ours := [key for key in keys if key.startswith(PREFIX.encode())]:
                        await connection.ask("DEL", *ours)
        except ValkeyUnreachable as error:
            raise ControlError(LOST.format(error, number)) from None


def _with_database(url: str, number: int) -> str:
    """The same server, with another database."""
    parts = urlsplit(url)
    if parts.scheme != "unix":
        return parts._replace(path=f"/{number}").geturl()
    return parts._replace(query=urlencode({**dict(parse_qsl(parts.query)), "db": str(number)})).geturl()


async def all_contents(url: str, _age_s: float) -> AsyncIterator[StoredValue]:
    """All keys of all databases, what the server remembers of commands, and its files. ValkeyUnreachable."""
    address = ValkeyAddress.parse(url)
    async with open_contents(address) as connection:
        facts = await connection.facts("everything")
        if facts.get("cluster_enabled") == "1":
            yield StoredValue(KEYS, "", reason="the other nodes of the cluster")
        for database in [int(name[2:]) for name in facts if name.startswith("db") and name[2:].isdecimal()]:
            await connection.ask("SELECT", database)
            async for found in scan(connection, "SCAN"):
                for key in found:
                    where = f"database {database}, key {ascii(key.decode(errors='replace'))[1:-1]}"
                    yield StoredValue(KEYS, where, partial(_guarded, partial(read_value, connection, key)))
        for name in REMEMBERED:
            yield StoredValue(MEMORY, name, partial(_guarded, partial(read_remembered, connection, name)))
        try:
            answers = await connection.ask("CONFIG", "GET", *SETTINGS)
        except ValkeyUnreachable as error:
            yield StoredValue(FILES, "", reason=f"where they are is not known: {error}")
            return
    settings = {name.decode(): value.decode(errors="replace") for name, value in answers.items()}
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
