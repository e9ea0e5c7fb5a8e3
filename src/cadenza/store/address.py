"""Opens the store at an address of the config file: SQLite here, and what parts can open."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from cadenza import parts
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.store import WAIT_S, Store, StoreUnavailable

NOT_UNDERSTOOD = (
    "The store's address is not understood: write it like sqlite:///./data/cadenza.db "
    "or postgresql://user:password@host/database."
)


class Carried(msgspec.Struct, frozen=True):
    """How many rows of each table the target of a move has, and whether this move copied them."""

    rows: dict[str, int]
    is_new: bool


OpenStore = Callable[[str, float | None], Store]
MoveStore = Callable[[str, str], Coroutine[Any, Any, Carried]]


def open_store(url: str, wait_s: float | None = None) -> Store:
    """Return the store at this address. It connects when it is first used.

    `wait_s` bounds the wait for a lock, and on Postgres for a connection or an answer. The default is 10 seconds on
    SQLite.
    """
    try:
        if part := parts.find(url):
            opened: OpenStore = part.load("open").open_store
            return opened(url, wait_s)
        return SqliteStore(_sqlite_path(url), wait_s or WAIT_S)
    except (ArgumentError, ValueError):  # their messages may quote a password
        raise StoreUnavailable(NOT_UNDERSTOOD) from None


def _sqlite_path(url: str) -> Path:
    address = make_url(url)
    if address.drivername != "sqlite" or address.database in {None, "", ":memory:"}:
        raise ValueError
    return Path(address.database or "")
