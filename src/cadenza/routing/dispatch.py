"""From a plan to a reply: routes are tried until one begins to answer. The only retry loop there is.

Routes of a lower `order` come first, those of one order share by `weight`; one that rests or is full is passed over.
Retries have a budget, for each request and for the process, so that a fault never becomes a storm. Once a client has
been sent a byte, a failure is the relay's to tell, but for a stream that another route can go on with (continuing.py).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import groupby
from typing import NamedTuple

from cadenza.core.errors import CadenzaError, InvalidRequest, RateLimited, UpstreamFailed
from cadenza.core.records import Route
from cadenza.observe import Observer
from cadenza.routing.health import Attempt, Healths, RouteHealth
from cadenza.upstreams.base import Ask, Fault, FaultKind, OpenReply, Upstream

BUSY_RETRY_S = 2.0
RETRIES_MAX = 3  # of one request
RETRIES_PER_REQUEST = 0.2  # of all requests together, in the long run


class RetryBudget:
    """What retries may be spent: one for every five requests, saved up to as many as may be in flight."""

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._left = self._most

    def change_most(self, most: int) -> None:
        self._most = float(most)
        self._left = min(self._left, self._most)

    def earn(self) -> None:
        self._left = min(self._most, self._left + RETRIES_PER_REQUEST)

    def spend(self) -> bool:
        if self._left < 1:
            return False
        self._left -= 1
        return True


class RoutedReply(NamedTuple):
    """A reply that has begun, and the route that it runs on. Whoever gets it closes it."""

    route: Route
    reply: OpenReply
    attempt: Attempt
    opening: AbstractAsyncContextManager[OpenReply]

    async def close(self) -> None:
        try:
            await self.opening.__aexit__(None, None, None)
        finally:
            self.attempt.end()


class Dispatcher:
    """Knows the upstream behind each provider's name, and how each route fares."""

    def __init__(self, upstreams: Mapping[str, Upstream], observer: Observer, ceiling: int) -> None:
        self.healths = Healths(ceiling, observer.metrics)
        self._upstreams = upstreams
        self._former: Mapping[str, Upstream] = {}  # for requests that were planned before the last change
        self._budget = RetryBudget(ceiling)
        self._turns: defaultdict[tuple[str, Route], int] = defaultdict(int)
        self._log = observer.log
        self._metrics = observer.metrics

    def use(self, upstreams: Mapping[str, Upstream], ceiling: int) -> None:
        """From now on; what is under way stays where it is. Whoever changed them wants them tried, so they are fit."""
        self._former = self._upstreams
        self._upstreams = upstreams
        self._turns.clear()
        self.healths.change_ceiling(ceiling)
        self.healths.forget()
        self._budget.change_most(ceiling)

    def earn_retries(self) -> None:
        """A new request came."""
        self._budget.earn()

    async def open_first(self, class_id: str, routes: Sequence[Route], ask: Ask, key_id: str) -> RoutedReply:
        """The first route that begins to answer; 400, 429 or 502 where there is none."""
        faults, passed_over = list[Fault](), set[RouteHealth]()
        for route, health, is_last_resort in self._line_up(class_id, routes):
            attempt = health.begin(key_id, is_last_resort=is_last_resort)
            if attempt is None:
                passed_over.add(health)
                continue
            passed_over.discard(health)
            if faults and not (len(faults) <= RETRIES_MAX and self.may_retry()):
                attempt.end()
                break
            try:
                return await self._ask(route, attempt, ask)
            except Fault as fault:
                faults.append(fault)
                if fault.kind is FaultKind.REFUSED:
                    break
        if not faults:
            self._metrics.refused.labels("routes").inc()
        raise answer_to(faults, passed_over)

    async def _ask(self, route: Route, attempt: Attempt, ask: Ask) -> RoutedReply:
        try:
            upstream = self._upstreams.get(route.provider) or self._former.get(route.provider)
            if upstream is None:  # its provider went away since the request was planned
                raise Fault(FaultKind.UNREACHABLE)
            opening = upstream.open(route, ask)
            reply = await opening.__aenter__()
        except BaseException as error:
            if isinstance(error, Fault):
                attempt.note_fault(error)
                self.note(route, error)
            attempt.end()
            raise
        attempt.note_answer(is_stream=ask.stream)
        return RoutedReply(route, reply, attempt, opening)

    def may_retry(self) -> bool:
        """Whether the process has a retry left, which is spent with this."""
        is_allowed = self._budget.spend()
        self._metrics.retries.labels("made" if is_allowed else "refused").inc()
        return is_allowed

    def _line_up(self, class_id: str, routes: Sequence[Route]) -> list[tuple[Route, RouteHealth, bool]]:
        """By order, within it by turns; those that rest at the end, as the last resort."""
        health_of = self.healths.of
        if len(routes) == 1:
            health = health_of(routes[0])
            return [(routes[0], health, health.is_resting)]
        resting, fit = list[Route](), list[Route]()
        for route in routes:
            (resting if health_of(route).is_resting else fit).append(route)
        line = []
        for _, group in groupby(fit, key=lambda route: route.order):
            line += [(route, health_of(route), False) for route in self._take_turns(class_id, list(group))]
        return line + [(route, health_of(route), True) for route in resting]

    def _take_turns(self, class_id: str, routes: list[Route]) -> list[Route]:
        """Each has its turn as often as its weight says, as evenly as can be: the smooth weighted round robin."""
        if len(routes) == 1:
            return routes
        turns = self._turns
        for route in routes:
            turns[class_id, route] += route.weight
        line = sorted(routes, key=lambda route: -turns[class_id, route])
        turns[class_id, line[0]] -= sum(route.weight for route in routes)
        return line

    def note(self, route: Route, fault: Fault) -> None:
        self._metrics.faults.labels(route.provider, fault.kind.value).inc()
        self._log.warning("upstream fault", provider=route.provider, kind=fault.kind.value, status=fault.status)

    def note_seam(self, route: Route) -> None:
        self._metrics.continued.labels(route.provider).inc()


def answer_to(faults: list[Fault], passed_over: set[RouteHealth]) -> CadenzaError:
    """What the client is told when no route answered."""
    if faults and faults[-1].kind is FaultKind.REFUSED:
        return InvalidRequest(
            "The model cannot take this request: it is too long for the model, or a field of it is not supported."
        )
    if all(fault.kind is FaultKind.BUSY for fault in faults) and not any(health.is_down for health in passed_over):
        waits_s = [fault.retry_after_s for fault in faults if fault.retry_after_s is not None]
        waits_s += [health.rest_s for health in passed_over if health.is_resting]
        return RateLimited("The service is saturated. Retry shortly.", min(waits_s, default=BUSY_RETRY_S))
    return UpstreamFailed("The model failed to answer. Retry; nothing was charged.")
