"""Rests of routes: until when an operator keeps requests from a model of a provider."""

import msgspec
from sqlalchemy import bindparam, delete, insert, or_, select

from cadenza.store.class_tables import route_rests
from cadenza.store.statements import Statement
from cadenza.store.store import Store, Transaction


class RouteRest(msgspec.Struct, frozen=True):
    """No process asks the route PROVIDER/MODEL until then."""

    route: str
    until_at: int
    actor: str


_COLUMNS = [route_rests.c[name] for name in RouteRest.__struct_fields__]
_IS_OVER = route_rests.c.until_at <= bindparam("now")
_SINCE = select(*_COLUMNS).where(~_IS_OVER).order_by(route_rests.c.route)
SINCE = Statement(_SINCE)
SINCE_OF_ROUTE = Statement(_SINCE.where(route_rests.c.route == bindparam("of")))
ADD = Statement(insert(route_rests), *RouteRest.__struct_fields__)
REMOVE = Statement(delete(route_rests).where(or_(_IS_OVER, route_rests.c.route == bindparam("of"))))


async def list_since(store: Store, now_ms: int) -> list[RouteRest]:
    """Those that end later."""
    return [RouteRest(*row) for row in await store.rows(SINCE, {"now": now_ms})]


def rests(tx: Transaction, route: str, now_ms: int) -> bool:
    return tx.row(SINCE_OF_ROUTE, {"of": route, "now": now_ms}) is not None


def add(tx: Transaction, rest: RouteRest) -> None:
    tx.change(ADD, msgspec.structs.asdict(rest))


def remove(tx: Transaction, route: str, now_ms: int) -> None:
    """Remove the rest of a route, and all that are over."""
    tx.change(REMOVE, {"of": route, "now": now_ms})
