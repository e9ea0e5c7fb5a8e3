"""The address of a store, as the config file gives it, and the store behind it."""

from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from cadenza.store.sqlite import SqliteStore
from cadenza.store.store import WAIT_S, Store, StoreUnavailable


def open_store(url: str, wait_s: float = WAIT_S) -> Store:
    """Return the store at this address. Nothing is opened until it is used."""
    address = _parse(url)
    if address.drivername == "sqlite":
        return SqliteStore(Path(address.database or ""), wait_s)
    from cadenza.store.postgres import PostgresStore  # noqa: PLC0415 asyncpg and its dialect are slow to import

    return PostgresStore(address, wait_s)


def _parse(url: str) -> URL:
    try:
        address = make_url(url)
    except ArgumentError:
        address = URL.create("unknown")
    if address.drivername in {"postgresql", "postgres"}:
        return address
    if address.drivername == "sqlite" and address.database not in {None, "", ":memory:"}:
        return address
    raise StoreUnavailable(
        "The store's address is not understood: write it like sqlite:///./data/cadenza.db "
        "or postgresql://user:password@host/database."
    )
