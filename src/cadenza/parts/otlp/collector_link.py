"""The connection to an OpenTelemetry collector, and what this process tells it of itself."""

import asyncio
import os
import platform
import uuid
from importlib.metadata import version

from cadenza.http.client import HttpClient, Unreachable
from cadenza.http.client_connection import Broken, read_body

POST_S = 10.0
CONNECT_S = 5.0
REPLY_BYTES_MAX = 64 * 1024


class CollectorLink:
    """Posts to a collector by OTLP over HTTP. `headers` are further ones, as NAME=VALUE,NAME=VALUE."""

    def __init__(self, url: str, headers: str, proxy: str | None) -> None:
        given = [pair.strip().partition("=") for pair in headers.split(",") if pair]
        fields = {"content-type": "application/x-protobuf", **{name: value for name, _, value in given}}
        self._http = HttpClient(url, fields, proxy)

    async def post(self, path: str, body: bytes) -> int | None:
        """The status of the reply; None if the collector gave none in time."""
        try:
            async with asyncio.timeout(POST_S), self._http.request("POST", path, body, CONNECT_S) as response:
                await read_body(response, asyncio.get_running_loop().time() + POST_S, REPLY_BYTES_MAX)
                return response.status
        except (TimeoutError, Unreachable, Broken):
            return None


def process_attributes() -> dict[str, str | int]:
    """Which process sends: each worker of each machine has an id of its own."""
    return {
        "service.name": "cadenza",
        "service.version": version("cadenza"),
        "service.instance.id": str(uuid.uuid4()),
        "host.name": platform.node(),
        "process.pid": os.getpid(),
    }
