"""Opens a store in Postgres."""

from cadenza.parts.postgres.connection import PostgresBounds
from cadenza.parts.postgres.store import PostgresStore
from cadenza.store.address import OpenStore
from cadenza.store.store import Store


def open_postgres(url: str, wait_s: float | None) -> Store:
    """`PostgresBounds` has what `wait_s` bounds, and the defaults, about 1 second."""
    bounds = PostgresBounds()
    return PostgresStore(url, bounds if wait_s is None else bounds.with_waits_of(wait_s))


open_store: OpenStore = open_postgres
