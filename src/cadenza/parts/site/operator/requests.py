"""Requests for operators: the newest of all accounts, and one with all that is known of it, and its refund.

The same as `cadenza tail` and `cadenza explain`. Unknown ids are 404.
"""

import msgspec
from starlette.responses import Response

from cadenza.control.money.refunds import refund_request
from cadenza.control.requests import OperatorRequest, RequestFollower, check_filter, explain, parse_filter
from cadenza.core.errors import ControlError
from cadenza.core.formats import rfc3339
from cadenza.core.money import format_dollars
from cadenza.core.public import to_public
from cadenza.core.records import CLASSES
from cadenza.parts.site import mailer as notices
from cadenza.parts.site.errors import BadForm
from cadenza.parts.site.money.credit import read_dollars
from cadenza.parts.site.routes import Routes, endpoint, form, get
from cadenza.parts.site.visit import Visit
from cadenza.store.tables.request_details import RecentRequest

ONE = "/operator/requests/{completion_id}"
ANY = "/operator/requests/{completion_id:path}"  # a request id may have slashes
SHOWN = 50
FILTERS = ("account", "key", "class", "status", "slow")
STATUSES = {"": "All", "200": "Served", "4xx,5xx": "Not served", "429": "Refused, 429", "5xx": "Failed, 5xx"}


class RequestRefund(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a request is refunded, which the owner sees. An empty part is all that it cost."""

    reason: str
    part: str = ""


class NewestRequests(msgspec.Struct, frozen=True):
    """The newest requests of all accounts, newest first."""

    data: list[RecentRequest]
    object: str = "list"


async def requests_page(visit: Visit) -> Response:
    """With a mistake in a filter, the page says so above the form, which keeps what was typed."""
    found, error = NewestRequests([]), ""
    try:
        found = await list_requests(visit)
    except BadForm as bad:
        error = bad.message
    today = rfc3339(visit.now_ms).partition("T")[0]
    values = {"chosen": _chosen(visit), "classes": CLASSES, "statuses": STATUSES, "today": today}
    response = visit.page("operator/requests.html", found=to_public(NewestRequests, found).data, error=error, **values)
    response.status_code = 400 if error else 200
    return response


async def list_requests(visit: Visit) -> NewestRequests:
    chosen = _chosen(visit)
    try:
        wanted = parse_filter(*(chosen.get(name, "") for name in FILTERS))
        await check_filter(visit.store, wanted, visit.now_ms)
    except ControlError as error:
        raise BadForm(error.message) from None
    found = await RequestFollower(visit.store, wanted).newest(SHOWN)
    return NewestRequests([*reversed(found)])


async def request_page(visit: Visit) -> Response:
    return visit.page("operator/request.html", found=await get_request(visit), typed=visit.typed)


async def get_request(visit: Visit) -> OperatorRequest:
    return (await explain(visit.store, visit.path_param("completion_id"), visit.now_ms))[0]


async def refund(visit: Visit, given: RequestRefund) -> OperatorRequest:
    """By completion id only: clients choose request ids, so another request may have the same one by now."""
    await get_request(visit)
    part_nano = read_dollars(given.part) if given.part.strip() else None
    completion_id, by = visit.path_param("completion_id"), visit.operator
    done = await refund_request(visit.store, completion_id, part_nano, given.reason, by, visit.now_ms)
    visit.context.send_notice(done.email, notices.CREDIT_ADDED, format_dollars(done.amount_nano))
    return await get_request(visit)


def _chosen(visit: Visit) -> dict[str, str]:
    query = visit.query_fields
    return {name: query[name].strip() for name in FILTERS if query.get(name, "").strip()}


ROUTES: Routes = (
    get("/operator/requests", requests_page),
    get(ANY, request_page),
    form(f"{ONE}/refund", refund, ONE, "refunded", on_error=request_page, needs_proof=True),
    endpoint(
        "GET",
        "/operator/requests",
        "List the newest requests of all accounts: of one account, key or class, with a status, or slow ones",
        list_requests,
        "operator.accounts:read",
    ),
    endpoint(
        "GET",
        ONE,
        "Show a request: what happened to it, and how its charge comes about",
        get_request,
        "operator.accounts:read",
    ),
    endpoint(
        "POST",
        f"{ONE}/refund",
        "Refund a request, or a part of what it cost",
        refund,
        "operator.credit:write",
        needs_proof=True,
    ),
)
