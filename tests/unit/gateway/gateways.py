"""Gateways over scripted upstreams, and snapshots for them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from cadenza.core.price_schedules import PriceSchedule
from cadenza.core.rates import Limits, Rate
from cadenza.core.records import Plan, Route
from cadenza.fleet.presence import Presence
from cadenza.fleet.shared import MemoryState
from cadenza.gateway.gateway import Gateway, LoadSnapshot, State
from cadenza.http.exchange import Exchange
from cadenza.observe import Observer
from cadenza.routing.catalogue import Catalogue, ServedClass, Snapshot
from cadenza.routing.prompt import Character
from cadenza.store.store import Store
from cadenza.upstreams.base import Upstream
from tests.raw_client import PATHS, body_of
from tests.unit.gateway.client import Client
from tests.unit.gateway.funded_store import FORTE, FundedStore
from tests.unit.gateway.prompts import TOKENIZER

LIMITS = Limits(Rate(10_000, 10_000), 100)
PROVIDER, MODEL = "acme", "acme-large"
ROUTE = Route(PROVIDER, MODEL, 2_000, 1_000)
REQUEST_ID = "req-of-the-test"


def snapshot_of(upstreams: Mapping[str, Upstream], limits: Limits = LIMITS, route: Route = ROUTE) -> Snapshot:
    forte = ServedClass(Plan.of("forte", (route,)), Character("Be brief."), PriceSchedule(FORTE))
    return Snapshot(Catalogue({"forte": forte}), upstreams, limits)


def make_gateway(
    store: Store,
    observer: Observer,
    snapshot: Snapshot | None = None,
    load_snapshot: LoadSnapshot | None = None,
    presence: Presence | None = None,
) -> Gateway:
    """A gateway that is not started. Without a snapshot it has no upstreams, without a loader a reload does nothing."""
    state = State(store, presence or Presence(store), MemoryState())
    return Gateway(state, snapshot or snapshot_of({}), load_snapshot or load_nothing, observer, TOKENIZER)


async def load_nothing() -> None:
    """No new snapshot."""


class Api:
    """A running gateway over a funded store, and requests to it with the store's key."""

    def __init__(self, funded: FundedStore, gateway: Gateway) -> None:
        self.funded = funded
        self.observer = funded.observer
        self.gateway = gateway

    def chat(
        self, client: Client, text: str = "hi", *, body: bytes | None = None, protocol: str = "chat", **fields: Any
    ) -> Exchange:
        """Send a chat request of one message, or with this body."""
        body = body or body_of(protocol, [{"role": "user", "content": text}], **fields)
        headers = [*self.funded.key_headers, (b"x-request-id", REQUEST_ID.encode())]
        return client.open(headers, path=PATHS[protocol], body=body)

    def get(self, client: Client, path: str, query: bytes = b"") -> Exchange:
        return client.open(self.funded.key_headers, "GET", path, query=query)


@asynccontextmanager
async def running_api(
    funded: FundedStore, upstream: Upstream | None = None, load_snapshot: LoadSnapshot | None = None
) -> AsyncIterator[Api]:
    """Serve the class `forte` from this upstream."""
    snapshot = snapshot_of({PROVIDER: upstream} if upstream else {})
    presence = Presence(funded.store)
    gateway = make_gateway(funded.store, funded.observer, snapshot, load_snapshot, presence)
    async with running(gateway, presence):
        yield Api(funded, gateway)


@asynccontextmanager
async def running(gateway: Gateway, presence: Presence) -> AsyncIterator[None]:
    """A gateway that has started, in a process that is registered."""
    await presence.start()
    await gateway.start(0)
    try:
        yield
    finally:
        await gateway.stop()
        await presence.stop()
