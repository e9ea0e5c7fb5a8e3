"""The operator's first page, with the live load, and the page of classes."""

from starlette.responses import Response

from cadenza.control.operator import get_overview
from cadenza.web.operator.load import Load, read_load
from cadenza.web.operator.views import OperatorOverview, view_overview
from cadenza.web.routes import Routes, endpoint, get
from cadenza.web.visit import Visit


async def overview_page(visit: Visit) -> Response:
    found = await get_overview(visit.store, visit.now_ms)
    return visit.page("operator/overview.html", found=found, load=await get_load(visit))


async def classes_page(visit: Visit) -> Response:
    load = await get_load(visit)
    prices = {one.plan.class_id: one.price for one in visit.context.gateway.snapshot.catalogue.served()}
    return visit.page("operator/classes.html", prices=prices, load=load)


async def get_totals(visit: Visit) -> OperatorOverview:
    return view_overview(await get_overview(visit.store, visit.now_ms))


async def get_load(visit: Visit) -> Load:
    return read_load(visit.context.gateway, await visit.context.read_metrics())


ROUTES: Routes = (
    get("/operator", overview_page),
    get("/operator/classes", classes_page),
    endpoint("GET", "/operator/overview", "Show all accounts together, and the usage of today", get_totals),
    endpoint("GET", "/operator/load", "Show the live load, and the health of every route", get_load),
)
