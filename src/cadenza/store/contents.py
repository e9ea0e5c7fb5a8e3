"""Everything that a server has, as a search sees it: places, the values in them, and how to read each."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

PIECE_BYTES = 1024 * 1024
POSTGRES_TABLES = "Postgres tables, every value"
POSTGRES_VIEWS = "Postgres statistics and running statements"
POSTGRES_LOG = "Postgres server log"
POSTGRES_WAL = "Postgres write-ahead log"
POSTGRES_PAGES = "Postgres data files, with deleted rows"

Feed = Callable[[bytes], None]


class ValueUnreadable(Exception):
    """The reason why a value cannot be read. It never quotes a value."""


class StoredValue(NamedTuple):
    """A value of a place. `read` hands its bytes to a function, or raises ValueUnreadable.

    Without it, `reason` says what of the place cannot be read.
    """

    place: str
    where: str
    read: Callable[[Feed], Awaitable[None]] | None = None
    reason: str = ""


async def read_path(path: Path, feed: Feed) -> None:
    """Hand all bytes of a file of this machine to `feed`. A file that is not there has none."""
    try:
        with await asyncio.to_thread(path.open, "rb") as file:
            while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                feed(piece)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ValueUnreadable(error.strerror) from None
