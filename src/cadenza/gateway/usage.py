"""Reading usage: the account's own counters over a span of time. It touches no content, for none is kept."""

from datetime import UTC, datetime
from urllib.parse import parse_qs

import msgspec

from cadenza.core.errors import InvalidRequest
from cadenza.core.report import parse_group, parse_span
from cadenza.gateway.auth import authenticate
from cadenza.gateway.call import JSON, Call
from cadenza.gateway.context import Gateway
from cadenza.store.usage import report


async def get_usage(gw: Gateway, call: Call) -> None:
    principal = await authenticate(gw, call, "usage")
    asked = {name: values[-1] for name, values in parse_qs(call.query.decode("latin-1")).items()}
    try:
        span = parse_span(asked.get("start"), asked.get("end"), datetime.now(UTC))
        group_by = parse_group(asked.get("group_by"))
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    async with gw.db.read() as connection:
        found = await report(connection, principal.account_id, span, group_by)
    call.respond(200, msgspec.json.encode(found.shown()), JSON)
