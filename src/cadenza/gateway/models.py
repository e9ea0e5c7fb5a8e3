"""Model discovery: the classes that this service offers."""

import re

import msgspec

from cadenza.gateway.gateway import Gateway
from cadenza.gateway.request import ApiRequest

MODELS_PATH = "/v1/models"
SLASHES = re.compile("//+")


async def list_models(gateway: Gateway, request: ApiRequest) -> None:
    request.answers.send_json(msgspec.json.encode(gateway.snapshot.catalogue.models()))


async def get_model(gateway: Gateway, request: ApiRequest) -> None:
    class_id = single_slashes(request.exchange.request.path).rstrip("/").removeprefix(MODELS_PATH + "/")
    request.answers.send_json(msgspec.json.encode(gateway.snapshot.catalogue.model(class_id)))


def single_slashes(path: str) -> str:
    """The path without repeated slashes: some clients join a base address that ends in one with a path."""
    return SLASHES.sub("/", path)
