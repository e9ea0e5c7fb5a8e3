"""The usage endpoint: an account's own counters over a span of time."""

import re
from datetime import UTC, datetime
from urllib.parse import parse_qs

import msgspec

from cadenza.core.errors import InvalidRequest
from cadenza.core.usage_report import parse_group, parse_span
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.request import ApiRequest
from cadenza.store.tables.usage import report

MODELS_PATH = "/v1/models"
SLASHES = re.compile("//+")


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


async def list_models(gateway: Gateway, request: ApiRequest) -> None:
    request.answers.send_json(msgspec.json.encode(gateway.snapshot.catalogue.models()))


async def get_model(gateway: Gateway, request: ApiRequest) -> None:
    class_id = single_slashes(request.exchange.request.path).rstrip("/").removeprefix(MODELS_PATH + "/")
    request.answers.send_json(msgspec.json.encode(gateway.snapshot.catalogue.model(class_id)))


def single_slashes(path: str) -> str:
    """The path without repeated slashes: some clients join a base address that ends in one with a path."""
    return SLASHES.sub("/", path)
