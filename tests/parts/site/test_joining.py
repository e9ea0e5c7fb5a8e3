"""How the pages of parts join those of the site."""

from starlette.responses import Response

from cadenza.parts.site.joining import Pages, join
from cadenza.parts.site.render import Tab
from cadenza.parts.site.routes import get
from cadenza.parts.site.visit import Panel, Visit


async def serve(visit: Visit) -> Response:
    return Response()


async def values(visit: Visit) -> dict[str, str]:
    return {}


def test_pages_of_parts_join_those_of_the_site() -> None:
    """The site has the routes, notes and panels of all; a tab of a part stands after the one that it names."""
    own = Pages(
        routes=(get("/settings", serve),), tabs=(Tab("/settings", "A"), Tab("/settings/z", "Z")), notes={"a": "A."}
    )
    panel = Panel("/settings", "part/panel.html", values)
    one = Pages(routes=(get("/b", serve),), tabs=(Tab("/settings/b", "B", after="/settings"),), panels=(panel,))
    other = Pages(routes=(), tabs=(Tab("/settings/c", "C", after="/settings/b"),), notes={"b": "B."})
    joined = join(own, [one, other])
    assert [route.path for route in joined.routes] == ["/settings", "/b"]
    assert [tab.label for tab in joined.tabs] == ["A", "B", "C", "Z"]
    assert (joined.panels, joined.notes) == ((panel,), {"a": "A.", "b": "B."})
