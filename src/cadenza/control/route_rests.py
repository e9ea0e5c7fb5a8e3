"""Rests of routes: an operator keeps requests from a model of a provider for some time, in every process.

A request that comes after the command has returned does not go to the route; requests in flight continue. A rest is in
the store, so it outlives the processes, and it ends by itself.
"""

from collections.abc import Collection

from cadenza.core.errors import ControlError
from cadenza.core.formats import rfc3339
from cadenza.core.records import Operator
from cadenza.core.spans import DAY_MS
from cadenza.fleet.changes import make_change
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import audit_events, epochs, route_rests
from cadenza.store.tables.audit_events import AuditEvent
from cadenza.store.tables.route_rests import RouteRest

REST_MS_MIN, REST_MS_MAX = 1_000, DAY_MS


async def rest_route(
    store: Store, route: str, rest_ms: int, routes: Collection[str], by: Operator, now_ms: int
) -> RouteRest:
    """Keep requests from one of `routes`, each PROVIDER/MODEL. This replaces an earlier rest of it."""
    if route not in routes:
        raise ControlError(f"No class has the route {route[:200]!r}. The routes are {', '.join(routes)}.")
    if not REST_MS_MIN <= rest_ms <= REST_MS_MAX:
        raise ControlError("A route rests for 1 second to 24 hours: write 90s, 10m or 2h.")
    rest = RouteRest(route, now_ms + rest_ms, by.name)

    def work(tx: Transaction) -> RouteRest:
        epochs.begin_next(tx, epochs.CLASSES)  # first: it locks out every other change of a rest until the commit
        route_rests.remove(tx, route, now_ms)
        route_rests.add(tx, rest)
        detail = f"until {rfc3339(rest.until_at)}"
        audit_events.add(tx, AuditEvent(now_ms, by, "route.rest", subject=route, detail=detail))
        return rest

    return await make_change(store, work)


async def resume_route(store: Store, route: str, by: Operator, now_ms: int) -> None:
    """End a rest early."""

    def work(tx: Transaction) -> None:
        epochs.begin_next(tx, epochs.CLASSES)
        if not route_rests.rests(tx, route, now_ms):
            raise ControlError(f"The route {route[:200]!r} does not rest.")
        route_rests.remove(tx, route, now_ms)
        audit_events.add(tx, AuditEvent(now_ms, by, "route.resume", subject=route))

    await make_change(store, work)
