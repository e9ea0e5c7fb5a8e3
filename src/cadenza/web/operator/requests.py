"""One charged request for operators: what it cost and why, and its refund. Unknown ids are 404."""

import msgspec
from starlette.responses import Response

from cadenza.control.email import messages as notices
from cadenza.control.money.refunds import refund_request
from cadenza.control.money.statement import find_charge
from cadenza.core.formats import dollars_or_none
from cadenza.core.money import format_dollars
from cadenza.ledger.statement import ChargeDetails
from cadenza.web.errors import Missing
from cadenza.web.money.credit import read_dollars
from cadenza.web.money.statement import view_prices
from cadenza.web.routes import Routes, endpoint, form, get, to_record
from cadenza.web.visit import Visit

ONE = "/operator/requests/{completion_id}"


class RequestRefund(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a request is refunded, which the owner sees. An empty part is all that it cost."""

    reason: str
    part: str = ""


class OperatorRequest(msgspec.Struct, frozen=True):
    """A charged request. `charged` is negative, and `granted` the part of it that was granted credit.

    Prices are in dollars a token. Older requests lack some of this.
    """

    completion_id: str
    request_id: str | None
    account_id: str
    email: str
    key_id: str | None
    created_at: str
    charged: str
    granted: str | None
    refunded: str | None
    class_id: str | None
    version: int | None
    provider: str | None
    model: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    input_price: str | None
    cached_input_price: str | None
    output_price: str | None


async def request_page(visit: Visit, error: str = "", typed: RequestRefund | None = None) -> Response:
    return visit.page("operator/request.html", found=await _find(visit), error=error, typed=typed)


async def get_request(visit: Visit) -> OperatorRequest:
    found = await _find(visit)
    entry = found.entry
    return to_record(
        OperatorRequest,
        entry,
        account_id=found.account_id,
        email=found.email,
        charged=format_dollars(entry.amount_nano),
        granted=dollars_or_none(entry.granted_nano),
        refunded=dollars_or_none(entry.refunded_nano),
        **view_prices(entry),
    )


async def refund(visit: Visit, given: RequestRefund) -> OperatorRequest:
    await _find(visit)
    part_nano = read_dollars(given.part) if given.part.strip() else None
    completion_id, by = visit.path_param("completion_id"), visit.actor
    done = await refund_request(visit.store, completion_id, part_nano, given.reason, by, visit.now_ms)
    visit.context.send_notice(done.email, notices.CREDIT_ADDED, format_dollars(done.amount_nano))
    return await get_request(visit)


async def _find(visit: Visit) -> ChargeDetails:
    found = await find_charge(visit.store, visit.path_param("completion_id"))
    if found is None:
        raise Missing
    return found


ROUTES: Routes = (
    get(ONE, request_page),
    form(f"{ONE}/refund", refund, ONE, "refunded", on_error=request_page, needs_proof=True),
    endpoint(
        "GET",
        ONE,
        "Show a charged request, and how its charge comes about",
        get_request,
        scope="operator.accounts:read",
    ),
    endpoint(
        "POST",
        f"{ONE}/refund",
        "Refund a request, or a part of what it cost",
        refund,
        needs_proof=True,
        scope="operator.credit:write",
    ),
)
