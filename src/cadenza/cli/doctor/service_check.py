"""The check of the running service by `cadenza doctor`: how its routes answer chats, by its own metrics.

A provider may list its models and refuse every chat. Only the service sees that, so its metrics are read first.
"""

import asyncio
import contextlib
import time

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from cadenza.cli.doctor.check import Check
from cadenza.config.settings import ServerSettings
from cadenza.http.client import HttpClient, OutOfResources, Unreachable
from cadenza.http.client_connection import Broken, read_body
from cadenza.upstreams.base import Fault, FaultKind
from cadenza.upstreams.trial.session import fault_advice

ANSWER_S = 3.0
BYTES_MAX = 16 * 1024 * 1024
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 where a service that listens everywhere is asked
FAILING = "cadenza_route_failing"
LAST_FAULT = "cadenza_route_last_fault_timestamp_seconds"

Place = tuple[str, str]  # provider and model


class LiveFault(msgspec.Struct, frozen=True):
    """The last fault of a route, and whether its requests still fail."""

    kind: str
    status: int | None
    ago_s: float
    is_failing: bool

    @property
    def words(self) -> str:
        status = f" ({self.status})" if self.status else ""
        return f"{self.kind}{status}, {_span(self.ago_s)} ago"

    @property
    def advice(self) -> str:
        kind = next((one for one in FaultKind if one.value == self.kind), FaultKind.FAILED)
        return fault_advice(Fault(kind, self.status)) or "Read the `upstream fault` lines of the log."


class LiveRoutes(msgspec.Struct, frozen=True):
    """What the running service says: one check for the service, and the last fault of each route that had one."""

    check: Check
    faults: dict[Place, LiveFault] = {}


async def ask_service(server: ServerSettings) -> LiveRoutes:
    host = ANY_ADDRESS.get(server.host) or (f"[{server.host}]" if ":" in server.host else server.host)
    address = f"{host}:{server.port}"
    headers = {"authorization": f"Bearer {server.metrics_token}"} if server.metrics_token else {}
    client = HttpClient(f"http://{address}", headers)
    try:
        async with asyncio.timeout(ANSWER_S), client.request("GET", "/metrics", b"", ANSWER_S) as response:
            body = await read_body(response, asyncio.get_running_loop().time() + ANSWER_S, BYTES_MAX)
            status = response.status
    except (Unreachable, OutOfResources):
        return LiveRoutes(Check("service", "ok", f"not running at {address}, the address of the config"))
    except (TimeoutError, Broken):
        return LiveRoutes(_unclear(address, "does not answer"))
    finally:
        await client.close()
    if status != 200:
        return LiveRoutes(_unclear(address, f"answers {status} to GET /metrics"))
    faults = read_faults(body.decode(errors="replace"), time.time())
    return LiveRoutes(Check("service", "ok", f"running at {address}"), faults)


def read_faults(text: str, now_s: float) -> dict[Place, LiveFault]:
    """The last fault of each route. Several worker processes may have seen one: the latest counts."""
    failing, latest = set[Place](), dict[Place, tuple[float, str, str]]()
    with contextlib.suppress(ValueError):  # another program is at this address
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                place = (sample.labels.get("provider", ""), sample.labels.get("model", ""))
                if sample.name == FAILING and sample.value:
                    failing.add(place)
                elif sample.name == LAST_FAULT:
                    seen = (sample.value, sample.labels["kind"], sample.labels["status"])
                    latest[place] = max(latest.get(place, seen), seen)
    return {
        place: LiveFault(kind, int(status) if status else None, max(0.0, now_s - at_s), is_failing=place in failing)
        for place, (at_s, kind, status) in latest.items()
    }


def _unclear(address: str, what: str) -> Check:
    todo = "Check that it is the service of this config, and its metrics token: its routes could not be asked about."
    return Check("service", "warning", f"{address} {what}", todo)


def _span(seconds: float) -> str:
    for unit, size_s in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.0f} s"
