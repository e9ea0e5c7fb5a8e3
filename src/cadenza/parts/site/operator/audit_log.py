"""The audit log: who did what to whom, and when."""

from typing import Annotated

import msgspec
from starlette.responses import Response

from cadenza.control.audit_log import PAGE, list_audit_events
from cadenza.core.errors import ControlError
from cadenza.parts.site.operator.views import AuditEventPage
from cadenza.parts.site.routes import Routes, endpoint, get
from cadenza.parts.site.visit import Visit
from cadenza.store.tables.audit_events import NEWEST, LoggedEvent


class AuditLogQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The address of the account that the events concern, and the id before which the page begins."""

    account: str = ""
    before: Annotated[int, msgspec.Meta(ge=1, le=NEWEST)] = NEWEST


async def audit_log_page(visit: Visit) -> Response:
    asked = visit.query(AuditLogQuery)
    found, next_before, error = list[LoggedEvent](), None, ""
    try:
        found, next_before = await _read_page(visit, asked)
    except ControlError:
        error = "There is no account with this e-mail address."
    response = visit.page("operator/audit_log.html", events=found, next_before=next_before, asked=asked, error=error)
    response.status_code = 400 if error else 200
    return response


async def get_audit_log(visit: Visit, asked: AuditLogQuery) -> AuditEventPage:
    found, next_before = await _read_page(visit, asked)
    return AuditEventPage(found, next_before)


async def _read_page(visit: Visit, asked: AuditLogQuery) -> tuple[list[LoggedEvent], int | None]:
    """A page of events, and the id before which the next page begins."""
    found = await list_audit_events(visit.store, asked.account or None, asked.before, PAGE + 1)
    return found[:PAGE], found[PAGE - 1].id if len(found) > PAGE else None


ROUTES: Routes = (
    get("/operator/audit-log", audit_log_page),
    endpoint("GET", "/operator/audit-log", "Read the audit log, newest first", get_audit_log, "operator.service:read"),
)
