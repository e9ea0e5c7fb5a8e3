"""The ledger check: a button, and the results in the audit log."""

import msgspec
from starlette.responses import Response

from cadenza.web.operator.views import AuditEventView, view_audit_event
from cadenza.web.render import redirect
from cadenza.web.routes import Access, Endpoint, Routes, get, post
from cadenza.web.visit import Visit


class Button(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A form with a button only."""


class LedgerResults(msgspec.Struct, frozen=True):
    """Whether a check runs in this process, and the newest results of all processes, newest first."""

    is_running: bool
    problem: str
    results: list[AuditEventView]


async def ledger_page(visit: Visit) -> Response:
    check = visit.context.ledger_check
    return visit.page("operator/ledger.html", check=check, results=await check.results())


async def ledger_form(visit: Visit) -> Response:
    await visit.form(Button)
    is_new = visit.context.ledger_check.begin(visit.account.email)
    return redirect("/operator/ledger", "check-started" if is_new else "check-runs")


async def get_ledger(visit: Visit) -> LedgerResults:
    check = visit.context.ledger_check
    return LedgerResults(check.is_running, check.problem, [view_audit_event(act) for act in await check.results()])


async def begin_ledger(visit: Visit) -> LedgerResults:
    visit.context.ledger_check.begin(visit.account.email)
    return await get_ledger(visit)


ROUTES: Routes = (
    get("/operator/ledger", ledger_page, Access.OPERATOR),
    post("/operator/ledger", ledger_form, Access.OPERATOR),
    Endpoint(
        "GET",
        "/operator/ledger",
        "Show the results of the ledger check",
        get_ledger,
        returns=LedgerResults,
        access=Access.OPERATOR,
    ),
    Endpoint(
        "POST",
        "/operator/ledger",
        "Begin a ledger check, unless one runs",
        begin_ledger,
        returns=LedgerResults,
        access=Access.OPERATOR,
    ),
)
