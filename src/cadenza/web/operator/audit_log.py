"""The audit log: who did what to whom, and when."""

from typing import Annotated

import msgspec
from starlette.responses import Response

from cadenza.control.operator import PAGE, list_audit_events
from cadenza.core.errors import ControlError
from cadenza.store.tables.audit_events import NEWEST, WrittenAuditEvent
from cadenza.web.operator.views import AuditEventPage, view_audit_event
from cadenza.web.routes import Access, Endpoint, Routes, get
from cadenza.web.visit import Visit


class ActsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The address of the account that the acts concern, and the id before which the page begins."""

    account: str = ""
    before: Annotated[int, msgspec.Meta(ge=1, le=NEWEST)] = NEWEST


async def acts_page(visit: Visit) -> Response:
    asked = visit.query(ActsQuery)
    try:
        found, next_before = await _acts(visit, asked)
    except ControlError:
        error = "There is no account with this e-mail address."
        return visit.page("operator/acts.html", 400, found=[], next_before=None, asked=asked, error=error)
    return visit.page("operator/acts.html", found=found, next_before=next_before, asked=asked, error="")


async def get_acts(visit: Visit) -> AuditEventPage:
    found, next_before = await _acts(visit, visit.query(ActsQuery))
    return AuditEventPage([view_audit_event(act) for act in found], next_before)


async def _acts(visit: Visit, asked: ActsQuery) -> tuple[list[WrittenAuditEvent], int | None]:
    """A page of acts, and the id before which the next page begins."""
    found = await list_audit_events(visit.context.store, asked.account or None, asked.before, PAGE + 1)
    return found[:PAGE], found[PAGE - 1].id if len(found) > PAGE else None


ROUTES: Routes = (
    get("/operator/acts", acts_page, Access.OPERATOR),
    Endpoint(
        "GET",
        "/operator/acts",
        "Read the audit log, newest first",
        get_acts,
        query=ActsQuery,
        returns=AuditEventPage,
        access=Access.OPERATOR,
    ),
)
