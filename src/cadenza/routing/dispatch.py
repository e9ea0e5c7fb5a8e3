"""Opens a reply: tries the routes of a plan until one begins to answer. This is the only retry loop.

Routes of a lower `order` come first, and routes of the same order share requests by `weight`. A route that rests or is
full, or whose circuit is open, is passed over. Retries have a budget per request and per process, so that faults cause
no storm of retries; going on from a route that is busy or unpaid is not a retry. Once the client has received a byte,
nothing is retried, but a stream may be continued (continuation.py).
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import filterfalse, groupby
from operator import attrgetter

import msgspec

from cadenza.core.errors import CadenzaError, ContextOverflow, InvalidRequest, RateLimited, UpstreamFailed
from cadenza.core.faults import FaultKind
from cadenza.core.rates import RetryBudget
from cadenza.core.records import BilledPart, Plan, Route
from cadenza.core.tokens import Tokenizer
from cadenza.observe import Observer
from cadenza.routing.health import Attempt, Clock, HealthTable, RouteHealth
from cadenza.routing.prompt import PromptSize
from cadenza.upstreams.base import Ask, Fault, OpenReply, Upstream

BUSY_RETRY_S = 2.0
RETRIES_MAX = 3  # of one request
IS_RESTING = attrgetter("is_resting")


class RouteRecord:
    """Is told what happens to the routes of a request. This one keeps only what a continued answer costs more."""

    also_billed: tuple[BilledPart, ...] = ()

    def failed(self, route: Route, fault: Fault) -> None:
        """A route failed before it began to answer."""

    def passed_over(self, route: Route, why: str) -> None:
        """A route was not asked."""

    def broke_off(self, route: Route, fault: Fault) -> None:
        """A route failed after it had begun to answer."""


class Dispatch(msgspec.Struct, frozen=True):
    """A reply to open: the ask, the routes and upstreams that may answer it, and the key and request that it is for."""

    plan: Plan
    ask: Ask
    prompt: PromptSize
    upstreams: Mapping[str, Upstream]
    key_id: str
    request_id: str
    record: RouteRecord = msgspec.field(default_factory=RouteRecord)


class Dispatcher:
    """Chooses routes by their health, and keeps the process's retry budget."""

    def __init__(self, observer: Observer, ceiling: int, tokenizer: Tokenizer, clock: Clock = time.monotonic) -> None:
        self.health = HealthTable(ceiling, observer, clock)
        self.tokenizer = tokenizer
        self.budget = RetryBudget(ceiling)
        self._turns: defaultdict[tuple[str, Route], int] = defaultdict(int)
        self._log = observer.log
        self.metrics = observer.metrics
        self.attempts = observer.attempts

    def reset(self, ceiling: int) -> None:
        """After a reload: other routes, another ceiling."""
        self._turns.clear()
        self.health.reset(ceiling)
        self.budget.change_most(ceiling)

    async def open_first(self, wanted: Dispatch, routes: Sequence[Route]) -> tuple[Route, OpenReply, Attempt]:
        """The first reply that begins. The caller closes it and ends its attempt. 400, 429 or 502."""
        faults: list[Fault] = []  # not list[Fault](), which takes 20 times as long
        passed_over: set[RouteHealth] = set()
        window_tokens = 0
        for route, health, is_last_resort in self._line_up(wanted.plan.class_id, routes):
            if route.context_tokens <= window_tokens:  # the prompt was too long for a window of this size
                continue
            attempt = health.begin(wanted.key_id, is_last_resort=is_last_resort)
            if attempt is None:
                passed_over.add(health)
                wanted.record.passed_over(route, _why_passed_over(health))
                continue
            passed_over.discard(health)  # an earlier route may have the same provider and model
            if faults and not self._may_go_on(faults):
                attempt.end()
                break
            try:
                reply = await wanted.upstreams[route.provider].open(route, wanted.ask)
            except Fault as fault:
                attempt.record_fault(fault)
                attempt.end()
                wanted.ask.on_asked(None)
                wanted.record.failed(route, fault)
                self.attempts.add(route, fault.kind.value)
                self.report_fault(wanted, route, fault)
                faults.append(fault.with_traceback(None))  # which would keep this frame, and a large reply, in a cycle
                if fault.overflow:
                    window_tokens = route.context_tokens
                elif fault.kind is FaultKind.INVALID:
                    break
            except BaseException:
                attempt.end()
                raise
            else:
                attempt.record_response(is_stream=wanted.ask.stream)
                return route, reply, attempt
        passed_over = {*filterfalse(IS_RESTING, passed_over)}  # a rest is no reason to try again soon
        if passed_over and not faults:
            self.metrics.refused.labels("routes").inc()
        if faults and (overflow := faults[-1].overflow):
            prompt_tokens = overflow.prompt_tokens or await wanted.prompt.count()
            raise ContextOverflow(overflow.window_tokens or window_tokens, prompt_tokens)
        raise error_for(faults, passed_over)

    def _may_go_on(self, faults: list[Fault]) -> bool:
        """Whether another route may be tried. A route that was busy, or is not paid for, cost it nothing."""
        failures = sum(fault.kind not in (FaultKind.BUSY, FaultKind.QUOTA) for fault in faults)
        return not failures or (failures <= RETRIES_MAX and self.may_retry())

    def may_retry(self) -> bool:
        """Take one retry from the process's budget, if there is one."""
        is_allowed = self.budget.spend()
        self.metrics.retries.labels("made" if is_allowed else "refused").inc()
        return is_allowed

    def _line_up(self, class_id: str, routes: Sequence[Route]) -> list[tuple[Route, RouteHealth, bool]]:
        """The routes and their health, by order, then by turn; those that rest and open circuits last, marked True."""
        health_of = self.health.of
        if len(routes) == 1:
            return [(routes[0], health_of(routes[0]), True)]
        broken: list[Route] = []
        fit: list[Route] = []
        for route in routes:
            health = health_of(route)
            (broken if health.is_open or health.is_resting else fit).append(route)
        line = []
        for _, group in groupby(fit, key=lambda route: route.order):
            line += [(route, health_of(route), False) for route in self._take_turns(class_id, list(group))]
        return line + [(route, health_of(route), True) for route in broken]

    def _take_turns(self, class_id: str, routes: list[Route]) -> list[Route]:
        """Smooth weighted round robin."""
        if len(routes) == 1:
            return routes
        turns = self._turns
        for route in routes:
            turns[class_id, route] += route.weight
        line = sorted(routes, key=lambda route: -turns[class_id, route])
        turns[class_id, line[0]] -= sum(route.weight for route in routes)
        return line

    def report_fault(self, wanted: Dispatch, route: Route, fault: Fault) -> None:
        """Count and log it. The Attempt has told the route's health."""
        self.metrics.faults.labels(route.provider, fault.kind.value).inc()
        self._log.warning(
            "upstream fault",
            request_id=wanted.request_id,
            provider=route.provider,
            kind=fault.kind.value,
            status=fault.status,
        )


def _why_passed_over(health: RouteHealth) -> str:
    return "resting" if health.is_resting else "circuit_open" if health.is_open else "full"


def error_for(faults: list[Fault], passed_over: set[RouteHealth]) -> CadenzaError:
    """The error for the client when no route answered."""
    if faults and faults[-1].kind is FaultKind.INVALID:
        return InvalidRequest(
            "The model cannot take this request: it is too long, a field of it is not supported, "
            "or its content is not allowed."
        )
    is_busy = all(fault.kind is FaultKind.BUSY for fault in faults) and not any(one.is_down for one in passed_over)
    if is_busy and (faults or passed_over):
        waits_s = [fault.retry_after_s for fault in faults if fault.retry_after_s is not None]
        waits_s += [health.open_s for health in passed_over if health.is_open]
        return RateLimited("The service is saturated. Retry shortly.", min(waits_s, default=BUSY_RETRY_S), "routes")
    return UpstreamFailed("The model failed to answer. Retry; nothing was charged.")
