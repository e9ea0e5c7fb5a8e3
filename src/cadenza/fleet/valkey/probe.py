"""What `cadenza doctor` asks Valkey: whether it answers and takes writes, and its version."""

import asyncio
import re
from functools import partial

import hiredis
import msgspec

from cadenza.fleet.address import parse
from cadenza.fleet.valkey.link import Unreachable, ask, open_connection
from cadenza.fleet.valkey.timing import Timing
from cadenza.fleet.valkey.wire import Connection

PROBE_S = 5.0


class Found(msgspec.Struct, frozen=True):
    """A server that answers: its name and version, and whether its keys are spread over a cluster."""

    server: str
    version: tuple[int, ...]
    is_cluster: bool
    trip_s: float  # how long one command took


async def probe(url: str) -> Found:
    """Unreachable, with the reason, if it cannot be used."""
    make = partial(Connection, PROBE_S, lambda _: None, lambda _: None)
    try:
        async with asyncio.timeout(Timing().connect_s + PROBE_S):
            connection = await open_connection(parse(url), make)
            began_s = asyncio.get_running_loop().time()
            info = await ask(connection, "INFO")
            trip_s = asyncio.get_running_loop().time() - began_s
    except TimeoutError:
        raise Unreachable("no connection in time") from None
    connection.end("done")
    if info is None or isinstance(info, hiredis.ReplyError):
        raise Unreachable("INFO is not answered")
    facts = dict(re.findall(r"^(\w+):(.*?)\r?$", info.decode(), re.MULTILINE))
    server = "Valkey" if "valkey_version" in facts else "Redis"
    version = facts.get("valkey_version") or facts.get("redis_version", "0")
    return Found(server, tuple(map(int, re.findall(r"\d+", version))), facts.get("cluster_enabled") == "1", trip_s)
