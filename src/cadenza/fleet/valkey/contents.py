"""Everything that a Valkey server has: keys and values of all databases, and what it remembers of commands.

ValkeyUnreachable if it does not answer, or refuses to. It is asked for a few hundred items at a time.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import hiredis

from cadenza.fleet.valkey.connection import (
    Answer,
    Part,
    ValkeyAddress,
    ValkeyConnection,
    ValkeyUnreachable,
    ask,
    error_code,
    open_connection,
)

ANSWER_S = 30.0
CONNECT_S = 10.0
ITEMS_AT_ONCE = 500
PIECE_BYTES = 1024 * 1024
SCANS = {b"hash": "HSCAN", b"set": "SSCAN", b"zset": "ZSCAN"}
REMEMBERED: dict[str, tuple[Part, ...]] = {
    "the slow log": ("SLOWLOG", "GET", -1),
    "the log of refused commands": ("ACL", "LOG", 1000),
    "the list of clients": ("CLIENT", "LIST"),
    "functions": ("FUNCTION", "LIST", "WITHCODE"),
}
SETTINGS = ("dir", "dbfilename", "appenddirname", "logfile", "rdbcompression")

Feed = Callable[[bytes], None]


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

    async def remembered(self, name: str) -> bytes:
        """One of REMEMBERED."""
        return flat(await self._ask(*REMEMBERED[name]))

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


def flat(answer: Answer) -> bytes:
    """All texts of an answer, one after the other, each with an end."""
    if isinstance(answer, bytes):
        return answer + b"\0"
    if isinstance(answer, dict):
        return b"".join(flat(key) + flat(value) for key, value in answer.items())
    if isinstance(answer, (list, tuple, set, frozenset)):
        return b"".join(map(flat, answer))
    return str(answer).encode() + b"\0"
