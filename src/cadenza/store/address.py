"""The address of a store, as the config file gives it, and the store behind it."""

from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from cadenza.store.sqlite import SqliteStore
from cadenza.store.store import WAIT_S, Store, StoreUnavailable


def open_store(url: str, wait_s: float | None = None) -> Store:
    """Return the store at this address. Nothing is opened until it is used.

    It waits up to `wait_s` for a lock, and Postgres as long for a connection or an answer. By default these are 10
    seconds on SQLite, and the waits of PostgresBounds, about 1 second, on Postgres.
    """
    if url.startswith(("postgresql://", "postgres://")):
        from cadenza.store.postgres import PostgresStore  # noqa: PLC0415 asyncpg is slow to import
        from cadenza.store.postgres_connect import PostgresBounds  # noqa: PLC0415

        bounds = PostgresBounds()
        return PostgresStore(url, bounds if wait_s is None else bounds.with_waits_of(wait_s))
    return SqliteStore(_sqlite_path(url), wait_s or WAIT_S)


def _sqlite_path(url: str) -> Path:
    try:
        address = make_url(url)
    except ArgumentError:
        address = URL.create("unknown")
    if address.drivername == "sqlite" and address.database not in {None, "", ":memory:"}:
        return Path(address.database or "")
    raise StoreUnavailable(
        "The store's address is not understood: write it like sqlite:///./data/cadenza.db "
        "or postgresql://user:password@host/database."
    )
