"""How pages join the site: the record in which the site lists its own, and the module `pages` of a part what it adds.

Only the site loads these modules, when its first page is asked for. A template of a part is called `NAME/FILE.html`,
and is `templates/FILE.html` in its folder; what is in its `static/` has the URL of the site's own files.
"""

from collections.abc import Iterable, Mapping

import msgspec

from cadenza.parts.site.render import Tab
from cadenza.parts.site.routes import Routes
from cadenza.parts.site.visit import Panel


class Pages(msgspec.Struct, frozen=True, kw_only=True):
    """What the site serves, or what a part adds to it: the name `PAGES` of its module `pages`."""

    routes: Routes
    tabs: tuple[Tab, ...] = ()
    panels: tuple[Panel, ...] = ()
    notes: Mapping[str, str] = {}  # what the page says after a form, by the note that the form names


def join(site: Pages, added: Iterable[Pages]) -> Pages:
    """The site with what parts add. A tab is put after the one that it names."""
    routes, tabs, panels, notes = [*site.routes], [*site.tabs], [*site.panels], {**site.notes}
    for one in added:
        routes += one.routes
        panels += one.panels
        notes |= one.notes
        for tab in one.tabs:
            [place] = [number for number, other in enumerate(tabs, 1) if other.path == tab.after]
            tabs.insert(place, tab)
    return Pages(routes=tuple(routes), tabs=tuple(tabs), panels=tuple(panels), notes=notes)
