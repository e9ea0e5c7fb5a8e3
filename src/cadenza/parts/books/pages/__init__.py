"""The operator's pages of margins, of bills and of months, and the newest months on the page of the ledger."""

from cadenza.parts.books.pages import margins, months
from cadenza.parts.site.joining import Pages
from cadenza.parts.site.operator import ledger
from cadenza.parts.site.render import Tab
from cadenza.parts.site.visit import Panel

PAGES = Pages(
    routes=(*margins.ROUTES, *months.ROUTES),
    tabs=(Tab(margins.MARGINS, "Margins", after="/operator/classes"),),
    panels=(Panel(ledger.PAGE, "books/months.html", months.newest_months),),
    notes={"close-started": "The close of the month has begun. Its result appears here."},
)
