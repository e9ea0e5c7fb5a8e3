"""Model discovery: the classes that this service offers."""

import msgspec

from cadenza.gateway.auth import authenticate
from cadenza.gateway.call import JSON, Call
from cadenza.gateway.context import Gateway

MODELS_PATH = "/v1/models"


async def list_models(gw: Gateway, call: Call) -> None:
    await authenticate(gw, call, "models")
    call.respond(200, msgspec.json.encode(gw.catalogue.models()), JSON)


async def get_model(gw: Gateway, call: Call) -> None:
    await authenticate(gw, call, "models")
    model = gw.catalogue.model(call.path.rstrip("/").removeprefix(MODELS_PATH + "/"))
    call.respond(200, msgspec.json.encode(model), JSON)
