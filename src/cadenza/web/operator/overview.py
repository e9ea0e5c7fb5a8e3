"""The operator's first page, with the live load, and the page of classes."""

import msgspec
from starlette.responses import Response

from cadenza.control.operator import get_overview
from cadenza.core.money import TOKENS_PER_PRICE
from cadenza.routing.catalogue import ServedClass
from cadenza.web.operator.load import ClassLoad, Load, read_load
from cadenza.web.operator.views import OperatorOverview, view_overview
from cadenza.web.routes import Access, Endpoint, Routes, get
from cadenza.web.visit import Visit


class ClassPage(msgspec.Struct, frozen=True):
    """A class on the page. Prices are nano-dollars for a million tokens."""

    load: ClassLoad
    input_nano: int
    output_nano: int
    cached_input_nano: int | None


async def overview_page(visit: Visit) -> Response:
    found = await get_overview(visit.context.store, visit.now_ms)
    return visit.page("operator/overview.html", found=found, load=await get_load(visit))


async def classes_page(visit: Visit) -> Response:
    load = await get_load(visit)
    served = {one.plan.class_id: one for one in visit.context.gateway.snapshot.catalogue.served()}
    classes = [_class_page(one, served[one.id]) for one in load.classes]
    return visit.page("operator/classes.html", classes=classes, load=load)


async def get_totals(visit: Visit) -> OperatorOverview:
    return view_overview(await get_overview(visit.context.store, visit.now_ms))


async def get_load(visit: Visit) -> Load:
    return read_load(visit.context.gateway, await visit.context.read_metrics())


def _class_page(load: ClassLoad, served: ServedClass) -> ClassPage:
    price, cached_nano = served.price, served.price.cached_input_nano
    return ClassPage(
        load,
        price.input_nano * TOKENS_PER_PRICE,
        price.output_nano * TOKENS_PER_PRICE,
        None if cached_nano is None else cached_nano * TOKENS_PER_PRICE,
    )


ROUTES: Routes = (
    get("/operator", overview_page, Access.OPERATOR),
    get("/operator/classes", classes_page, Access.OPERATOR),
    Endpoint(
        "GET",
        "/operator/overview",
        "Show all accounts together, and the usage of today",
        get_totals,
        returns=OperatorOverview,
        access=Access.OPERATOR,
    ),
    Endpoint(
        "GET",
        "/operator/load",
        "Show the live load, and the health of every route",
        get_load,
        returns=Load,
        access=Access.OPERATOR,
    ),
)
