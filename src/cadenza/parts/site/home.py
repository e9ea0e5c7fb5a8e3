"""The first page: what this service is, what its classes cost, what it keeps, and where to begin."""

from starlette.responses import Response

from cadenza.parts.site.render import redirect
from cadenza.parts.site.routes import Access, Routes, get
from cadenza.parts.site.visit import Visit

PURPOSES = {
    "mezzo": "Light everyday chat.",
    "forte": "The default. Recommended for code and files.",
    "fortissimo": "The highest class.",
}
DYNAMICS = {"mezzo": "mf", "forte": "f", "fortissimo": "ff"}  # as a score abbreviates them, softest first


async def home(visit: Visit) -> Response:
    if visit.is_signed_in:
        return redirect("/chat")
    settings = visit.service.settings
    return visit.page(
        "home.html",
        classes=visit.service.gateway.snapshot.catalogue.served(),
        purposes=PURPOSES,
        dynamics=DYNAMICS,
        sign_up=visit.context.settings.sign_up,
        region=settings.store.region,
        has_config=settings.source is not None,
    )


ROUTES: Routes = (get("/", home, Access.ANYONE),)
