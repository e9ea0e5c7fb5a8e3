"""The check of the ledger, which is a button, and the results in the audit log."""

import msgspec
from starlette.responses import Response

from cadenza.parts.site.render import redirect
from cadenza.parts.site.routes import Routes, endpoint, form, get
from cadenza.parts.site.visit import Visit
from cadenza.store.tables.audit_events import LoggedEvent

PAGE = "/operator/ledger"


class LedgerResults(msgspec.Struct, frozen=True):
    """Whether a check runs in this process, and the newest results of all processes, newest first."""

    is_running: bool
    problem: str
    results: list[LoggedEvent]


async def ledger_page(visit: Visit) -> Response:
    check = visit.context.ledger_check
    return await visit.page_with_panels(PAGE, "operator/ledger.html", check=check, results=await check.results())


async def begin_by_form(visit: Visit) -> Response:
    is_new = visit.context.ledger_check.begin(visit.operator) is not None
    return redirect(PAGE, "check-started" if is_new else "check-runs")


async def get_results(visit: Visit) -> LedgerResults:
    check = visit.context.ledger_check
    return LedgerResults(check.is_running, check.problem, await check.results())


async def begin(visit: Visit) -> LedgerResults:
    visit.context.ledger_check.begin(visit.operator)
    return await get_results(visit)


ROUTES: Routes = (
    get(PAGE, ledger_page),
    form(PAGE, begin_by_form, PAGE),
    endpoint("GET", PAGE, "Show the results of the ledger check", get_results, "operator.service:read"),
    endpoint("POST", PAGE, "Begin a ledger check, unless one runs", begin, "operator.service:write"),
)
