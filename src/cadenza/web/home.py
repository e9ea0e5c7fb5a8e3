"""The first page: what this service is, and where to begin."""

from starlette.responses import Response

from cadenza.web.render import redirect
from cadenza.web.routes import Access, Routes, get
from cadenza.web.visit import Visit


async def home(visit: Visit) -> Response:
    if visit.is_signed_in:
        return redirect("/chat")
    return visit.page("home.html", models=visit.context.gateway.snapshot.catalogue.ids)


ROUTES: Routes = (get("/", home, Access.ANYONE),)
