"""What serving a request needs, built once at the start, and the notes that are taken of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from cadenza.core.rates import Rate
from cadenza.core.records import Outcome, Plan, Principal, Route
from cadenza.gateway.call import Call, Uploads
from cadenza.gateway.classes import Catalogue
from cadenza.gateway.dispatch import Dispatcher
from cadenza.gateway.limits import Limits, Strangers
from cadenza.observe import Observer
from cadenza.store.database import Database
from cadenza.store.shared import Rates, Slots
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
        self.strangers = Strangers(observer.metrics)
        self.uploads = Uploads()
        self.is_draining = False
        self._calls: set[Call] = set()  # those that are being answered
        self._is_idle = asyncio.Event()
        self.classes_epoch = 0  # of the classes that are served
        self._reading = asyncio.Lock()
        self.log = observer.log
        self.metrics = observer.metrics
        self.at = observer.at
        self.metrics.slots.set_function(lambda: self.slots.shares.taken)
        self.metrics.in_flight.set_function(lambda: len(self._calls))
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

    def begin(self, call: Call) -> None:
        call.task = call.task or asyncio.current_task()
        if not self._calls:
            self._is_idle.clear()
        self._calls.add(call)

    def end(self, call: Call, endpoint: str) -> None:
        self._calls.discard(call)
        self.uploads.give_back(call.body_bytes)
        if not self._calls:
            self._is_idle.set()
        self._note_end(call, endpoint)

    async def until_idle(self) -> None:
        """Until nothing is being answered."""
        if self._calls:
            await self._is_idle.wait()

    def cut(self) -> None:
        """End all that is being answered; what was delivered is charged."""
        for call in list(self._calls):
            call.cut()

    def has_usable_route(self) -> bool:
        """Whether any route of any class may be asked."""
        return any(not self.dispatcher.healths.of(route).is_down for route in self.catalogue.routes())

    def note_use(self, call: Call, principal: Principal) -> None:
        self.keys_used[principal.key_id] = time.time_ns() // 1_000_000
        call.facts["key_id"] = principal.key_id

    def note_outcome(self, call: Call, plan: Plan, route: Route, outcome: Outcome) -> None:
        usage = outcome.usage
        tokens, facts, class_id = self.metrics.tokens, call.facts, plan.class_id
        self.metrics.first_byte.add(class_id, (call.first_byte_ms or 0) / 1000)
        tokens.add(class_id, "prompt", amount=usage.prompt_tokens)
        tokens.add(class_id, "cached", amount=usage.cached_tokens)
        tokens.add(class_id, "completion", amount=usage.completion_tokens)
        facts["class_id"], facts["provider"] = class_id, route.provider
        facts["prompt_tokens"], facts["completion_tokens"] = usage.prompt_tokens, usage.completion_tokens
        if outcome.is_doubtful:
            self.metrics.doubtful_usage.labels(route.provider).inc()
            self.log.warning("an upstream's counts cannot be true", provider=route.provider, request_id=call.request_id)
        if outcome.fault:
            call.facts["fault"] = outcome.fault

    def _note_end(self, call: Call, endpoint: str) -> None:
        seconds = time.perf_counter() - call.started_s
        self.metrics.requests.add(endpoint, str(call.status))
        self.metrics.duration.add(endpoint, seconds)
        self.log.request(
            {
                "request_id": call.request_id,
                "endpoint": endpoint,
                "status": call.status,
                "ms": round(seconds * 1000, 1),
                **call.facts,
            }
        )


async def _nothing_to_read() -> None:
    """Until the composition root says what reading again means."""
