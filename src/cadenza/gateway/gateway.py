"""The resources of the data plane, built once at the start and handed to every endpoint."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from cadenza.core.tokens import Tokenizer
from cadenza.fleet.key_cache import KeyCache
from cadenza.fleet.presence import Presence
from cadenza.fleet.shared import SharedState
from cadenza.gateway.grounding import Grounder, NoGrounder
from cadenza.gateway.in_flight import InFlight
from cadenza.gateway.large.bodies import LargeBodies
from cadenza.gateway.slots import Slots
from cadenza.gateway.unknown_keys import UnknownKeyLimiter
from cadenza.gateway.unpaid import UnpaidWork
from cadenza.gateway.uploads import Uploads
from cadenza.gateway.written_later import KeyUse
from cadenza.http.body import BodyMemory
from cadenza.ledger.writer import LedgerWriter
from cadenza.observe import Observer
from cadenza.routing.catalogue import Snapshot
from cadenza.routing.dispatch import Dispatcher
from cadenza.store.store import Store, StoreUnavailable

MIB = 1024 * 1024
BODY_BYTES_MAX = 512 * MIB  # the bodies of all requests together
COPIES = 4  # of a body at once: as it came, decoded, and composed for the upstream

LoadSnapshot = Callable[[], Awaitable[Snapshot | None]]


def body_bytes_max(room_bytes: int | None) -> int:
    """How much memory the bodies of all requests may take, if the process has `room_bytes` left."""
    return BODY_BYTES_MAX if room_bytes is None else min(BODY_BYTES_MAX, max(MIB, room_bytes // COPIES))


class State(msgspec.Struct, frozen=True):
    """What outlives a request: the store, this process among the others, and shared limits."""

    store: Store
    presence: Presence
    shared: SharedState


class Gateway:
    """Shared by all requests; it has no state of a single request. New requests are served by `snapshot`."""

    def __init__(
        self,
        state: State,
        snapshot: Snapshot,
        load_snapshot: LoadSnapshot,
        observer: Observer,
        tokenizer: Tokenizer | None = None,
        body_bytes: int = BODY_BYTES_MAX,
    ) -> None:
        self.store = store = state.store
        self.snapshot = snapshot
        self.observer = observer
        self.ledger = LedgerWriter(store, observer, state.presence)
        self.ledger.costs.known = snapshot.costs
        self.dispatcher = Dispatcher(observer, snapshot.limits.concurrency, tokenizer or Tokenizer())
        self.rates = state.shared.rates
        self.slots = Slots(snapshot.limits.concurrency, lender=state.shared.lender)
        self.key_cache = KeyCache(store, state.presence)
        self.unknown_keys = UnknownKeyLimiter(observer.metrics, state.shared.networks)
        self.large_bodies = LargeBodies(observer, self.dispatcher.tokenizer)
        self.grounder: Grounder = NoGrounder()
        self.in_flight = InFlight()
        self.key_use = KeyUse(store, observer.log)
        self.uploads = Uploads(BodyMemory(body_bytes), observer.metrics)
        self.unpaid = UnpaidWork(observer.metrics)
        self.reloader = Reloader(load_snapshot, self._use)
        observer.metrics.slots.set_function(lambda: self.slots.taken)
        observer.metrics.slots_limit.set_function(lambda: self.slots.limit)
        observer.metrics.in_flight.set_function(lambda: len(self.in_flight))
        observer.metrics.tasks.set_function(lambda: len(asyncio.all_tasks()))

    async def start(self, classes_epoch: int) -> None:
        self.reloader.epoch = classes_epoch
        await self.ledger.start()

    async def stop(self) -> None:
        await self.ledger.stop()
        await self.large_bodies.stop()

    def has_usable_route(self) -> bool:
        """Whether any route of any class can be expected to answer. From then on the metrics have each route."""
        health_of_routes = [self.dispatcher.health.of(route) for route in self.snapshot.catalogue.routes()]
        return any(health.is_usable for health in health_of_routes)

    def _use(self, snapshot: Snapshot) -> None:
        """Serve new requests by this snapshot. Requests in flight keep the one that they have."""
        self.snapshot = snapshot
        self.ledger.costs.known = snapshot.costs
        self.slots.change_limit(snapshot.limits.concurrency)
        self.dispatcher.reset(snapshot.limits.concurrency)


class Reloader:
    """Reads config and classes again: on request, or when the store's epoch shows a change. One reload at a time."""

    def __init__(self, load: LoadSnapshot, use: Callable[[Snapshot], None]) -> None:
        self._load = load
        self._use = use
        self.epoch = 0  # of the classes that are served
        self._failures = 0  # of reads of the store
        self._lock = asyncio.Lock()

    async def reload(self) -> None:
        async with self._lock:
            await self._reload()

    async def catch_up(self, epoch: int) -> None:
        """Reload if a later epoch has begun. Every request that sees the later epoch waits for it.

        StoreUnavailable, also for those that waited for the same try: no request is served by what was replaced.
        """
        if epoch > self.epoch:
            failures = self._failures
            async with self._lock:
                if epoch <= self.epoch:
                    return
                if failures != self._failures:
                    raise StoreUnavailable("The classes could not be read from the store.")
                try:
                    await self._reload()
                except StoreUnavailable:
                    self._failures += 1
                    raise
                self.epoch = epoch

    async def _reload(self) -> None:
        if snapshot := await self._load():
            self._use(snapshot)
