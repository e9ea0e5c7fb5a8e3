"""The places of other servers: Postgres and Valkey."""

from cadenza.audit.needles import Needles
from cadenza.audit.search import Searched


async def search_postgres(needles: Needles, url: str) -> list[Searched]:
    """Every value of every table, statistics and running queries; server log, WAL and data files where readable."""
    raise NotImplementedError


async def search_valkey(needles: Needles, url: str) -> list[Searched]:
    """Every key and value, slow log and clients; its files where readable."""
    raise NotImplementedError
