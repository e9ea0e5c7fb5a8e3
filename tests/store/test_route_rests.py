"""Rests of routes in the store."""

import asyncio

from cadenza.control.route_rests import rest_route, resume_route
from cadenza.core.records import Operator
from cadenza.store.store import Store
from cadenza.store.tables.route_rests import list_since
from tests.store.rows import NOW_MS

ANN = Operator("ann")
ROUTES = ("acme/large", "acme/small")


async def test_a_route_has_one_rest(store: Store) -> None:
    """Of operators that act at once the last one wins; a rest that is over is not listed and leaves no row."""
    await rest_route(store, "acme/small", 1_000, ROUTES, ANN, NOW_MS)
    await asyncio.gather(
        *(rest_route(store, "acme/large", 60_000, ROUTES, by, NOW_MS) for by in (ANN, Operator("bob")))
    )
    assert [one.route for one in await list_since(store, NOW_MS)] == ["acme/large", "acme/small"]
    assert [one.route for one in await list_since(store, NOW_MS + 1_000)] == ["acme/large"]
    await resume_route(store, "acme/large", ANN, NOW_MS + 1_000)
    assert await list_since(store, 0) == []
