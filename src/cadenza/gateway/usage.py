"""Reading usage: the account's own counters over a span of time. It touches no content, for none is kept."""

from datetime import UTC, datetime
from urllib.parse import parse_qs

import msgspec

from cadenza.core.errors import InvalidRequest
from cadenza.core.usage_report import parse_group, parse_span
from cadenza.gateway.auth import authenticate
from cadenza.gateway.gateway import Gateway
from cadenza.http.exchange import JSON, Exchange
from cadenza.store.usage import report


async def get_usage(gw: Gateway, exchange: Exchange) -> None:
    principal = await authenticate(gw, exchange, "usage")
    asked = {name: values[-1] for name, values in parse_qs(exchange.query.decode("latin-1")).items()}
    try:
        span = parse_span(asked.get("start"), asked.get("end"), datetime.now(UTC))
        group_by = parse_group(asked.get("group_by"))
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    async with gw.db.read() as connection:
        found = await report(connection, principal.account_id, span, group_by)
    exchange.respond(200, msgspec.json.encode(found.shown()), JSON)
