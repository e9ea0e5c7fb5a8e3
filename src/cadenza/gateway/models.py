"""Model discovery: the classes that this service offers."""

import msgspec

from cadenza.gateway.auth import authenticate
from cadenza.gateway.gateway import Gateway
from cadenza.http.exchange import JSON, Exchange

MODELS_PATH = "/v1/models"


async def list_models(gw: Gateway, exchange: Exchange) -> None:
    await authenticate(gw, exchange, "models")
    exchange.respond(200, msgspec.json.encode(gw.catalogue.models()), JSON)


async def get_model(gw: Gateway, exchange: Exchange) -> None:
    await authenticate(gw, exchange, "models")
    model = gw.catalogue.model(exchange.path.rstrip("/").removeprefix(MODELS_PATH + "/"))
    exchange.respond(200, msgspec.json.encode(model), JSON)
