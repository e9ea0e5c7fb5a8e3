"""The usage endpoint: an account's own counters over a span of time."""

from datetime import UTC, datetime
from urllib.parse import parse_qs

import msgspec

from cadenza.core.errors import InvalidRequest
from cadenza.core.usage_report import parse_group, parse_span
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.request import ApiRequest
from cadenza.store.tables.usage import report


async def get_usage(gateway: Gateway, request: ApiRequest) -> None:
    query = request.exchange.request.query.decode("latin-1")
    asked = {name: values[-1] for name, values in parse_qs(query).items()}
    try:
        span = parse_span(asked.get("start"), asked.get("end"), datetime.now(UTC))
        group_by = parse_group(asked.get("group_by"))
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    found = await report(gateway.store, request.principal.account_id, span, group_by)
    request.answers.send_json(msgspec.json.encode(found.shown()))
