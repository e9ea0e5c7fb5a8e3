"""The first page: what this service is, what its classes cost, what it keeps, and where to begin."""

import msgspec
from starlette.responses import Response

from cadenza.core.money import TOKENS_PER_PRICE
from cadenza.core.records import CLASSES
from cadenza.routing.catalogue import ServedClass
from cadenza.web.render import redirect
from cadenza.web.routes import Access, Routes, get
from cadenza.web.visit import Visit

PURPOSES = {
    "mezzo": "Light everyday chat.",
    "forte": "The default. Recommended for code and files.",
    "fortissimo": "The highest class.",
}
DYNAMICS = {"mezzo": "mf", "forte": "f", "fortissimo": "ff"}  # as a score abbreviates them


class OfferedClass(msgspec.Struct, frozen=True):
    """A class as the first page shows it. Prices are for a million tokens."""

    id: str
    purpose: str
    dynamic: str
    level: int  # how far its hairpin opens: 1 to 3
    input_nano: int
    output_nano: int
    cached_input_nano: int | None


async def home(visit: Visit) -> Response:
    if visit.is_signed_in:
        return redirect("/chat")
    settings = visit.context.settings
    return visit.page(
        "home.html",
        classes=[_offered(served) for served in visit.context.gateway.snapshot.catalogue.served()],
        sign_up=settings.sign_up,
        region=settings.region,
    )


def _offered(served: ServedClass) -> OfferedClass:
    class_id, price = served.plan.class_id, served.price
    cached_nano = price.cached_input_nano
    return OfferedClass(
        class_id,
        PURPOSES[class_id],
        DYNAMICS[class_id],
        CLASSES.index(class_id) + 1,
        price.input_nano * TOKENS_PER_PRICE,
        price.output_nano * TOKENS_PER_PRICE,
        None if cached_nano is None else cached_nano * TOKENS_PER_PRICE,
    )


ROUTES: Routes = (get("/", home, Access.ANYONE),)
