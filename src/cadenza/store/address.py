"""Opens the store at an address of the config file."""

from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.store import WAIT_S, Store, StoreUnavailable

NOT_UNDERSTOOD = (
    "The store's address is not understood: write it like sqlite:///./data/cadenza.db "
    "or postgresql://user:password@host/database."
)


def open_store(url: str, wait_s: float | None = None) -> Store:
    """Return the store at this address. It connects when it is first used.

    `wait_s` bounds the wait for a lock, and on Postgres for a connection or an answer. The default is 10 seconds on
    SQLite; on Postgres `PostgresBounds` has the defaults, about 1 second.
    """
    try:
        if url.startswith(("postgresql://", "postgres://")):
            return _open_postgres(url, wait_s)
        return SqliteStore(_sqlite_path(url), wait_s or WAIT_S)
    except (ArgumentError, ValueError):  # their messages may quote a password
        raise StoreUnavailable(NOT_UNDERSTOOD) from None


def _open_postgres(url: str, wait_s: float | None) -> Store:
    from cadenza.store.postgres.connection import PostgresBounds  # noqa: PLC0415
    from cadenza.store.postgres.store import PostgresStore  # noqa: PLC0415 asyncpg is slow to import

    bounds = PostgresBounds()
    return PostgresStore(url, bounds if wait_s is None else bounds.with_waits_of(wait_s))


def _sqlite_path(url: str) -> Path:
    address = make_url(url)
    if address.drivername != "sqlite" or address.database in {None, "", ":memory:"}:
        raise ValueError
    return Path(address.database or "")
