"""What serving a request needs, built once at the start, and the notes that are taken of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from cadenza.core.rates import Rate
from cadenza.core.records import Plan, Principal, ReplyResult, Route
from cadenza.gateway.limits import Limits, UnknownKeyLimiter
from cadenza.gateway.shared import Rates, Slots
from cadenza.http.exchange import Exchange, Uploads
from cadenza.observe import Observer
from cadenza.routing.catalogue import Catalogue
from cadenza.routing.dispatch import Dispatcher
from cadenza.store.database import Database
from cadenza.store.writer import LedgerWriter


class Gateway:
    """The resources of the data plane. Handed to every endpoint; owns none of the request's state."""

    def __init__(
        self,
        db: Database,
        catalogue: Catalogue,
        dispatcher: Dispatcher,
        writer: LedgerWriter,
        limits: Limits,
        observer: Observer,
    ) -> None:
        self.db = db
        self.catalogue = catalogue
        self.dispatcher = dispatcher
        self.writer = writer
        self.limits = limits
        self.read_again: Callable[[], Awaitable[None]] = _nothing_to_read
        self.rates = Rates()
        self.slots = Slots(limits.concurrency)
        self.unknown_keys = UnknownKeyLimiter(observer.metrics)
        self.uploads = Uploads()
        self.is_draining = False
        self._exchanges: set[Exchange] = set()  # those that are being answered
        self._is_idle = asyncio.Event()
        self.classes_epoch = 0  # of the classes that are served
        self._reading = asyncio.Lock()
        self.log = observer.log
        self.metrics = observer.metrics
        self.at = observer.at
        self.metrics.slots.set_function(lambda: self.slots.shares.taken)
        self.metrics.in_flight.set_function(lambda: len(self._exchanges))
        self.metrics.tasks.set_function(lambda: len(asyncio.all_tasks()))
        self.keys_used: dict[str, int] = {}  # when each key was last used (ms), until it is written to the store

    async def catch_up(self, classes_epoch: int) -> None:
        """The classes are to be read again where a later epoch has begun; every request waits for it."""
        if classes_epoch > self.classes_epoch:
            async with self._reading:
                if classes_epoch > self.classes_epoch:
                    await self.read_again()
                    self.classes_epoch = classes_epoch

    def use(self, catalogue: Catalogue, limits: Limits) -> None:
        """From the next request on."""
        self.catalogue = catalogue
        self.limits = limits
        self.slots.change_limit(limits.concurrency)

    def rate_of(self, principal: Principal) -> Rate:
        if principal.requests_per_second is None and principal.burst is None:
            return self.limits.rate
        return Rate(principal.requests_per_second or self.limits.rate.per_s, principal.burst or self.limits.rate.burst)

    def begin(self, exchange: Exchange) -> None:
        exchange.task = exchange.task or asyncio.current_task()
        if not self._exchanges:
            self._is_idle.clear()
        self._exchanges.add(exchange)

    def end(self, exchange: Exchange, endpoint: str) -> None:
        self._exchanges.discard(exchange)
        self.uploads.give_back(exchange.body_bytes)
        if not self._exchanges:
            self._is_idle.set()
        self._note_end(exchange, endpoint)

    async def until_idle(self) -> None:
        """Until nothing is being answered."""
        if self._exchanges:
            await self._is_idle.wait()

    def cut(self) -> None:
        """End all that is being answered; what was delivered is charged."""
        for exchange in list(self._exchanges):
            exchange.cut()

    def has_usable_route(self) -> bool:
        """Whether any route of any class may be asked."""
        return any(not self.dispatcher.healths.of(route).is_down for route in self.catalogue.routes())

    def note_use(self, exchange: Exchange, principal: Principal) -> None:
        self.keys_used[principal.key_id] = time.time_ns() // 1_000_000
        exchange.facts["key_id"] = principal.key_id

    def note_outcome(self, exchange: Exchange, plan: Plan, route: Route, outcome: ReplyResult) -> None:
        usage = outcome.usage
        tokens, facts, class_id = self.metrics.tokens, exchange.facts, plan.class_id
        self.metrics.first_byte.add(class_id, (exchange.first_byte_ms or 0) / 1000)
        tokens.add(class_id, "prompt", amount=usage.prompt_tokens)
        tokens.add(class_id, "cached", amount=usage.cached_tokens)
        tokens.add(class_id, "completion", amount=usage.completion_tokens)
        facts["class_id"], facts["provider"] = class_id, route.provider
        facts["prompt_tokens"], facts["completion_tokens"] = usage.prompt_tokens, usage.completion_tokens
        if outcome.is_doubtful:
            self.metrics.doubtful_usage.labels(route.provider).inc()
            self.log.warning(
                "an upstream's counts cannot be true", provider=route.provider, request_id=exchange.request_id
            )
        if outcome.fault:
            exchange.facts["fault"] = outcome.fault

    def _note_end(self, exchange: Exchange, endpoint: str) -> None:
        seconds = time.perf_counter() - exchange.started_s
        self.metrics.requests.add(endpoint, str(exchange.status))
        self.metrics.duration.add(endpoint, seconds)
        self.log.request(
            {
                "request_id": exchange.request_id,
                "endpoint": endpoint,
                "status": exchange.status,
                "ms": round(seconds * 1000, 1),
                **exchange.facts,
            }
        )


async def _nothing_to_read() -> None:
    """Until the composition root says what reading again means."""
