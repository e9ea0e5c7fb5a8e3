"""Whether a route may be asked: an operator's rest, circuit breaker, adaptive concurrency limit, fair shares."""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from cadenza.core.breaker import NEVER_S, OPEN, Breaker, BreakerState
from cadenza.core.faults import FaultKind
from cadenza.core.records import Route
from cadenza.core.shares import Shares
from cadenza.observe import Observer
from cadenza.routing.ceiling import Ceiling, FirstTokenTimes
from cadenza.upstreams.base import Fault

OVERLOADED = frozenset({503, 529})
FAILING_FAULTS = 3  # in a row; one fault may be chance
FAIL_AGAIN = {FaultKind.UNAUTHORIZED, FaultKind.QUOTA}  # the next request will fail too, until an operator acts
FAILING_S = 60.0  # without a further fault, requests must be let through to find out whether the route works again

Clock = Callable[[], float]


class RouteHealth:
    """One model of one provider, over all classes that use it.

    `on_open` is called with how long the circuit stays open, whenever it opens, and `on_fault` with every fault.
    """

    def __init__(
        self,
        ceiling: int,
        clock: Clock = time.monotonic,
        on_open: Callable[[float], None] = lambda _open_s: None,
        on_fault: Callable[[Fault], None] = lambda _fault: None,
    ) -> None:
        self.clock = clock
        self._on_open = on_open
        self._on_fault = on_fault
        self.breaker = Breaker(clock())
        self.rests_until_s = NEVER_S  # an operator keeps requests from it until then
        self.shares = Shares(ceiling)
        self.ceiling = Ceiling(ceiling)
        self.failures = 0  # requests in a row that failed before their first token
        self._failed_s = -math.inf  # when the last of them failed
        self.first_tokens = FirstTokenTimes(), FirstTokenTimes()  # of replies in one body, and of streams

    def reset(self, ceiling: int) -> None:
        """Start again with another ceiling. Requests in flight stay counted."""
        self.breaker.reset(self.clock())
        self.failures = 0
        self.ceiling = Ceiling(ceiling)

    @property
    def is_resting(self) -> bool:
        return self.rests_until_s > self.clock()

    @property
    def is_usable(self) -> bool:
        """Whether the next request to it can be expected to be answered."""
        return not (self.is_resting or self.is_failing)

    @property
    def open_s(self) -> float:
        """How much longer the circuit stays open."""
        return self.breaker.open_s(self.clock())

    def is_in(self, state: BreakerState) -> bool:
        return self.breaker.state(self.clock()) is state

    @property
    def is_open(self) -> bool:
        return self.breaker.state(self.clock()) is OPEN

    @property
    def is_down(self) -> bool:
        """Whether the circuit is open because the route failed, not because it has no capacity."""
        return self.is_open and not self.breaker.is_busy

    @property
    def is_failing(self) -> bool:
        """Whether it is down, or its last requests failed and none was answered since.

        A circuit that is half-open, or that too few requests have opened, does not mean that the route works.
        """
        return self.is_down or (self.failures >= FAILING_FAULTS and self.clock() - self._failed_s < FAILING_S)

    @property
    def limit(self) -> int:
        return self.ceiling.limit(self.clock())

    @property
    def in_flight(self) -> int:
        return self.shares.taken

    def begin(self, key_id: str, *, is_last_resort: bool = False) -> "Attempt | None":
        """A place for one request; None if the route rests or is full, or its circuit is open.

        A route that is the last resort is asked although its circuit is open.
        """
        now_s, shares = self.clock(), self.shares
        if self.rests_until_s > now_s:
            return None
        is_trial = self.breaker.open_until_s != NEVER_S
        if is_trial:
            if self.breaker.state(now_s) is OPEN and not is_last_resort:
                return None
            if not self.breaker.begin_trial(now_s):
                return None
        if (limit := self.ceiling.limit(now_s)) != shares.limit:
            shares.change_limit(limit)
        if not shares.take(key_id, now_s):
            shares.want(key_id, now_s)
            if is_trial:
                self.breaker.end_trial()
            return None
        return Attempt(self, key_id, now_s, is_trial)

    def record_fault(self, fault: Fault, started_s: float, *, has_answered: bool) -> None:
        self._on_fault(fault)
        if fault.kind is FaultKind.INVALID:  # the request is at fault, not the route
            return
        now_s, is_busy = self.clock(), fault.kind is FaultKind.BUSY
        if not (is_busy or has_answered):
            self.failures += FAILING_FAULTS if fault.kind in FAIL_AGAIN else 1
            self._failed_s = now_s
        if is_busy or fault.kind is FaultKind.TIMED_OUT or fault.status in OVERLOADED:
            self.ceiling.lower(self.in_flight, started_s, now_s)
        is_lasting = fault.kind is FaultKind.QUOTA
        if fault.retry_after_s:
            self.breaker.open(now_s, fault.retry_after_s, is_busy=is_busy)
        elif not self.breaker.record_fault(
            started_s, now_s, has_answered=has_answered, is_busy=is_busy, is_lasting=is_lasting
        ):
            return
        self._on_open(self.open_s)


class Attempt(msgspec.Struct):
    """One request on one route. It holds a place there until its end, and reports the result."""

    health: RouteHealth
    key_id: str
    started_s: float
    is_trial: bool
    has_answered: bool = False

    def end(self) -> None:
        self.health.shares.release(self.key_id)
        if self.is_trial:
            self._end_trial()

    def record_response(self, *, is_stream: bool) -> None:
        self.has_answered = True
        if self.is_trial:
            self._end_trial()
        health, started_s = self.health, self.started_s
        health.breaker.record_response(started_s)
        health.failures = 0
        now_s, ceiling, times = health.clock(), health.ceiling, health.first_tokens[is_stream]
        is_loaded = health.shares.taken * 2 >= ceiling.limit(now_s)
        times.note(now_s - started_s, is_loaded)
        if is_loaded and times.is_slow:
            ceiling.lower_if_due(times, now_s)
        elif is_loaded:
            ceiling.raise_by_answer(health.shares.taken)

    def record_finish(self) -> None:
        self.health.breaker.record_finish()

    def record_fault(self, fault: Fault) -> None:
        self.health.record_fault(fault, self.started_s, has_answered=self.has_answered)

    def _end_trial(self) -> None:
        """A trial that has its result lets another begin while this request goes on."""
        self.is_trial = False
        self.health.breaker.end_trial()


class HealthTable:
    """The health of every route, by provider and model. It outlives reloads."""

    def __init__(self, ceiling: int, observer: Observer, clock: Clock = time.monotonic) -> None:
        self._ceiling = ceiling
        self._clock = clock
        self._observer = observer
        self._routes: dict[tuple[str, str], RouteHealth] = {}
        self._rests: Mapping[str, int] = {}  # by PROVIDER/MODEL, until when in milliseconds
        self._rests_read = 0, 0.0  # when, by the clock of the store and by ours

    def reset(self, ceiling: int) -> None:
        """After a reload every route may be tried again: an operator who changed the config wants to see the effect."""
        self._ceiling = ceiling
        for health in self._routes.values():
            health.reset(ceiling)

    def rest(self, until_ms: Mapping[str, int], now_ms: int) -> bool:
        """Keep requests from these routes, each PROVIDER/MODEL, until then; from no others. False if that was so."""
        if until_ms == self._rests:
            return False
        self._rests, self._rests_read = until_ms, (now_ms, self._clock())
        for (provider, model), health in self._routes.items():
            health.rests_until_s = self._rest_of(provider, model)
        return True

    def _rest_of(self, provider: str, model: str) -> float:
        until_ms, (read_ms, read_s) = self._rests.get(f"{provider}/{model}"), self._rests_read
        return NEVER_S if until_ms is None else read_s + (until_ms - read_ms) / 1000

    def of(self, route: Route) -> RouteHealth:
        place = (route.provider, route.model)
        return self._routes.get(place) or self._add(*place)

    def _add(self, provider: str, model: str) -> RouteHealth:
        def log_open(open_s: float) -> None:
            self._observer.log.warning(
                "the circuit of a route opened", provider=provider, model=model, open_s=round(open_s, 3)
            )

        metrics, gauge = self._observer.metrics, self._observer.metrics.route_last_fault
        labels: tuple[str, ...] = ()  # of the last fault

        def show_fault(fault: Fault) -> None:
            nonlocal labels
            if labels:
                gauge.remove(*labels)
            labels = (provider, model, fault.kind.value, str(fault.status or ""))
            gauge.labels(*labels).set_to_current_time()

        health = self._routes[provider, model] = RouteHealth(self._ceiling, self._clock, log_open, show_fault)
        health.rests_until_s = self._rest_of(provider, model)
        metrics.route_limit.labels(provider, model).set_function(lambda: health.limit)
        metrics.route_in_flight.labels(provider, model).set_function(lambda: health.in_flight)
        metrics.route_resting.labels(provider, model).set_function(lambda: health.is_resting)
        metrics.doubtful_usage.labels(provider)  # from zero on: a series that begins at 1 shows no increase
        for kind in FaultKind:
            metrics.faults.labels(provider, kind.value)
        for state in BreakerState:
            shown = metrics.route_state.labels(provider, model, state.name.lower())
            shown.set_function(partial(health.is_in, state))
        metrics.route_failing.labels(provider, model).set_function(lambda: health.is_failing)
        return health
