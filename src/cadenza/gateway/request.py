"""One request to the API while it runs: what an endpoint is handed, and the record that its Outcome is made from."""

import asyncio
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import msgspec

from cadenza import clock
from cadenza.core.chat import ChatRequest
from cadenza.core.content import Content
from cadenza.core.errors import CadenzaError, Internal, KeyRevoked, RateLimited
from cadenza.core.records import DISCONNECTED_STATUS, Outcome, Principal, ReplyResult, RequestStep, Route
from cadenza.gateway.answers import SANE_ID, Answers, new_request_id
from cadenza.gateway.meter import UsageMeter
from cadenza.gateway.relay import ReplyHead, StreamRelay, WholeRelay
from cadenza.http.exchange import Exchange, Interruption
from cadenza.ledger.rules import Hold
from cadenza.process import is_exhausted
from cadenza.routing.catalogue import Snapshot
from cadenza.routing.dispatch import RouteRecord
from cadenza.store.store import StoreUnavailable
from cadenza.upstreams.base import Fault

SHUTDOWN_STATUS = 503  # of an outcome: the service stopped and interrupted the request
DISCONNECTED_CAUSE = "disconnected"
INTERRUPTIONS = {
    Interruption.DISCONNECT: (DISCONNECTED_STATUS, DISCONNECTED_CAUSE),
    Interruption.SHUTDOWN: (SHUTDOWN_STATUS, "shutdown"),
    Interruption.REVOKED: (KeyRevoked.status, KeyRevoked.cause),
}

P = ParamSpec("P")
T = TypeVar("T")
OnStep = Callable[[str], object]  # is called with the name of each step that a request reaches
UNTRACED: OnStep = len  # for most requests: a function that does nothing, and the cheapest there is


class RequestRecord(RouteRecord):
    """Each stage reports to it what it found out. Counts and metadata only, never content.

    `TracedRecord` (traces.py) keeps more of it.
    """

    completion_id = ""  # of a chat whose credit is held
    endpoint = "unknown"
    principal: Principal | None = None
    _class_id = ""
    _version: int | None = None
    _route: Route | None = None
    _fault = ""  # of the last route that failed, until another one answers
    _held_s: float | None = None
    _answered_s: float | None = None
    upstream_headers: Callable[[], bytes] | None = None  # further headers for an upstream, if there are any
    read_cpu_s = 0.0  # what the event loop took to read and to count a body that is not small
    _steps: tuple[RequestStep, ...] = ()
    _cause = ""

    def __init__(self, exchange: Exchange, at: OnStep = UNTRACED) -> None:
        given = exchange.request.headers.get(b"x-request-id")
        self.at = at
        self.request_id = given.decode() if given and SANE_ID.fullmatch(given) else new_request_id()
        self._exchange = exchange

    def ended_by(self, error: BaseException) -> int:
        """Note why the request ended early, and return its status."""
        status, self._cause = early_end(error, self._exchange.interruption)
        return status

    def note(self, kind: str, route: Route | None = None, cause: str = "", status: int | None = None) -> None:
        """Something unusual happened: `RequestStep` has the kinds."""
        at_ms = round((time.perf_counter() - self._exchange.started_s) * 1000)
        self._steps += (RequestStep(at_ms, kind, route.name if route else "", cause, status),)

    @property
    def was_shut_down(self) -> bool:
        """Whether the service stopped, and interrupted the request for that."""
        return self._exchange.interruption is Interruption.SHUTDOWN

    def measure(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do a part of the work on the body, and note its CPU time."""
        began_s = time.thread_time()
        try:
            return read(*args, **kwargs)
        finally:
            self.read_cpu_s += time.thread_time() - began_s

    def held(self, hold: Hold) -> None:
        self.completion_id, self._class_id, self._version = hold.completion_id, hold.class_id, hold.version
        self._held_s = time.perf_counter()

    def left_to(self, route: Route) -> None:
        """The client left while this route worked on the request."""
        self._route, self._fault = route, ""

    def routed(self, route: Route) -> None:
        """A route began to answer; the last one counts."""
        self._route, self._fault, self._answered_s = route, "", time.perf_counter()
        if self._steps:
            self.note("answered", route)

    def failed(self, route: Route, fault: Fault) -> None:
        """A route failed before it began to answer."""
        self._route, self._fault = route, fault.kind.value
        self.note("failed", route, fault.kind.value, fault.status)

    def passed_over(self, route: Route, why: str) -> None:
        """A route was not asked."""
        self.note("passed_over", route, why)

    def broke_off(self, route: Route, fault: Fault) -> None:
        """A route failed after it had begun to answer."""
        self._fault = fault.kind.value
        self.note("broke_off", route, fault.kind.value, fault.status)

    def gathered(self, part: str, began_s: float, result: str) -> None:
        """A part of grounding ended."""

    def outcome(self, status: int | None = None, result: ReplyResult | None = None) -> Outcome:
        """How the request ended: with the status given, or with that of the reply."""
        exchange, principal, route = self._exchange, self.principal, self._route
        now_s, first_s, started_s = time.perf_counter(), exchange.first_byte_s, exchange.started_s
        held_s, answered_s, gap_s = self._held_s, self._answered_s, exchange.gap_s
        usage, fault, is_doubtful, finish_reason = None, self._fault, False, ""
        if result:
            usage = None if result.is_free else result.usage
            fault, is_doubtful, finish_reason = result.fault or "", result.is_doubtful, result.finish_reason or ""
        return Outcome(  # more than 15 arguments by name would cost a dict
            self.request_id,
            self.endpoint,
            status or exchange.status or DISCONNECTED_STATUS,
            round((now_s - started_s) * 1000),
            clock.now_ms(),
            principal.key_id if principal else "",
            principal.account_id if principal else "",
            self.completion_id,
            self._class_id,
            self._version,
            route.provider if route else "",
            route.model if route else "",
            usage,
            None if first_s is None else round((first_s - started_s) * 1000),
            round(gap_s * 1000) if gap_s else None,
            fault,
            has_doubtful_usage=is_doubtful,
            finish_reason=finish_reason,
            also_billed=self.also_billed,
            cause=self._cause,
            held_s=None if held_s is None else held_s - started_s,
            answered_s=None if answered_s is None else answered_s - started_s,
            steps=self._steps,
        )


class ApiRequest(Content, msgspec.Struct, frozen=True):
    """A request whose key is live, has the scope and is within its rate, and what relays its reply.

    `chat` is given if another protocol has read the body and translated it, to so many bytes.
    """

    exchange: Exchange
    principal: Principal
    answers: Answers
    record: RequestRecord
    snapshot: Snapshot  # to its end, whatever is reloaded or promoted meanwhile
    query: dict[str, str]
    make_stream_relay: Callable[[Exchange, Answers, ReplyHead, UsageMeter], StreamRelay] = StreamRelay
    make_whole_relay: Callable[[Answers, ReplyHead, UsageMeter], WholeRelay] = WholeRelay
    chat: ChatRequest | None = None
    chat_bytes: int = 0


def early_end(error: BaseException, interruption: Interruption | None) -> tuple[int, str]:
    """Status and cause of a request that this error ended. If its task was cancelled, the interruption decides."""
    if isinstance(error, CadenzaError):
        return error.status, error.cause
    if isinstance(error, StoreUnavailable):
        return RateLimited.status, "store"
    if isinstance(error, asyncio.CancelledError):
        return INTERRUPTIONS[interruption or Interruption.DISCONNECT]
    return (RateLimited.status, "memory") if is_exhausted(error) else (Internal.status, Internal.cause)
