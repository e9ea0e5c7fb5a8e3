"""A chat at the path that Azure's clients use.

As at Azure, the path names the model, and the `model` of the body does not count. `api-version` is ignored. The key
comes in the header `api-key`: see auth.py.
"""

from urllib.parse import unquote

import msgspec

from cadenza.gateway.chat import read_chat, serve_chat
from cadenza.gateway.endpoints import single_slashes
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.request import ApiRequest
from cadenza.gateway.uploads import Upload

START, END = "/openai/deployments/", "/chat/completions"
DEPLOYMENT_PATH = f"{START}{{model}}{END}"


async def serve_deployment(gateway: Gateway, request: ApiRequest) -> None:
    exchange, principal = request.exchange, request.principal
    path = single_slashes(exchange.request.path).removesuffix("/")
    upload = Upload(gateway.uploads, principal, request.snapshot.catalogue.least_nano)
    chat = await read_chat(exchange, upload, gateway.large_bodies, principal, request.record)  # 415 400 413 402 408 429
    model = unquote(path.removeprefix(START).removesuffix(END))
    await serve_chat(gateway, msgspec.structs.replace(request, chat=msgspec.structs.replace(chat, model=model)))
