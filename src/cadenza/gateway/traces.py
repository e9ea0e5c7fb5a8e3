"""Traced requests: which ones, what is noted while they run, and the spans that are made of it afterwards.

    POST /v1/chat/completions           the request (server)
      rate, read, slot, hold, settle    its steps, and `grounding` with its parts, if it had any
      chat CLASS                        the answer, with all attempts (client, GenAI conventions)
        route PROVIDER/MODEL            each route that was tried (client); an upstream is told this span
          first token, relay            of a route that answered by a stream

A request that is not traced pays nothing for it: the steps report to its record anyway (`RequestRecord`), and only the
record of a traced request notes the time. Of a client's text, nothing is noted.
"""

import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from cadenza.core.records import Outcome, ReplyResult, Route
from cadenza.gateway.api import ENDPOINTS, Endpoint, serve_api
from cadenza.gateway.endings import DISCONNECTED_CAUSE
from cadenza.gateway.endpoints import MODELS_PATH
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.request import At, RequestRecord
from cadenza.http.exchange import Exchange
from cadenza.ledger.rules import Hold
from cadenza.observe.spans import EndedSpan, SpanKind, Value
from cadenza.observe.trace_context import TraceParent, read_parent
from cadenza.upstreams.base import Fault

FOLLOWED_PER_S = 10  # requests that are traced because their clients ask for it, in each process
CHATS = ("chat", "web_chat")  # endpoints with the steps below
STEPS = {  # the steps of a chat in their order, and the span that ends with each; the routes have spans of their own
    "identified": "rate",
    "read": "read",
    "admitted": "slot",
    "quoted": "grounding",
    "held": "hold",
    "opened": "",
    "relayed": "",
    "settled": "settle",
    "finished": "",
}
NEXT = dict(zip(["", *STEPS], STEPS, strict=False))
SPAN_ID_BYTES, TRACE_ID_BYTES = 8, 16


class PassingRecord(RequestRecord):
    """The record of a request that is not traced here: its upstream is told what its client said."""

    def __init__(self, parent: TraceParent, exchange: Exchange, at: At) -> None:
        super().__init__(exchange, at)
        self.upstream_headers = parent.fields


class RouteTry(msgspec.Struct):
    """An attempt on a route, as far as it has come."""

    span_id: bytes
    began_s: float
    route: Route | None = None
    answered_s: float | None = None
    ended_s: float | None = None
    error: str = ""
    status: int | None = None


class GatheredPart(msgspec.Struct, frozen=True):
    """A part of grounding and what became of it."""

    name: str
    began_s: float
    ended_s: float
    result: str


class TracedRecord(RequestRecord):
    """The record of a traced request: it notes when each step ended, and each route that was tried."""

    def __init__(self, exchange: Exchange, at: At, parent: TraceParent | None) -> None:
        super().__init__(exchange, self._mark)
        self.upstream_headers = self._begin_try
        self._fault_point = at
        self._trace_id = parent.trace_id if parent else os.urandom(TRACE_ID_BYTES)
        self._parent = parent
        self._chat_id = os.urandom(SPAN_ID_BYTES)
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()
        self._marks: dict[str, float] = {}
        self._tries: list[RouteTry] = []
        self._parts: list[GatheredPart] = []
        self._hold: Hold | None = None
        self._outcome: Outcome | None = None

    def _mark(self, name: str) -> None:
        self._marks[name] = time.perf_counter()
        self._fault_point(name)

    def _begin_try(self) -> bytes:
        """The headers for the upstream that is asked now: its span is the parent of what the upstream does."""
        self._tries.append(RouteTry(os.urandom(SPAN_ID_BYTES), time.perf_counter()))
        state = self._parent.state if self._parent else b""
        return TraceParent(self._trace_id, self._tries[-1].span_id, is_sampled=True, state=state).fields()

    def _running_try(self) -> RouteTry:
        """The last attempt that has not ended. The embedded model is not told of the trace, so it begins here."""
        if not self._tries or self._tries[-1].ended_s is not None:
            began_s = self._tries[-1].ended_s if self._tries else self._marks.get("held")
            self._tries.append(RouteTry(os.urandom(SPAN_ID_BYTES), began_s or time.perf_counter()))
        return self._tries[-1]

    def held(self, hold: Hold) -> None:
        super().held(hold)
        self._hold = hold

    def routed(self, route: Route) -> None:
        super().routed(route)
        running = self._running_try()
        running.route, running.answered_s = route, time.perf_counter()

    def failed(self, route: Route, fault: Fault) -> None:
        super().failed(route, fault)
        self._end_try(route, fault)

    def _end_try(self, route: Route, fault: Fault) -> None:
        running = self._running_try()
        running.route, running.ended_s = route, time.perf_counter()
        running.error, running.status = fault.kind.value, fault.status

    def broke_off(self, route: Route, fault: Fault) -> None:
        super().broke_off(route, fault)
        self._end_try(route, fault)

    def left_to(self, route: Route) -> None:
        super().left_to(route)
        running = self._running_try()
        running.route, running.ended_s = route, time.perf_counter()
        running.error = self._cause or DISCONNECTED_CAUSE

    def gathered(self, part: str, began_s: float, result: str) -> None:
        self._parts.append(GatheredPart(part, began_s, time.perf_counter(), result))

    def outcome(self, status: int | None = None, result: ReplyResult | None = None) -> Outcome:
        self._outcome = super().outcome(status, result)
        return self._outcome

    def spans(self) -> list[EndedSpan]:
        """The spans of the request, which has ended. The first is the request itself."""
        outcome, exchange = self._outcome or self.outcome(), self._exchange
        span_id, ended_s = os.urandom(SPAN_ID_BYTES), time.perf_counter()
        method, path = exchange.request.method, exchange.request.path
        route = path if path in ENDPOINTS else f"{MODELS_PATH}/{{model}}" if self.endpoint == "model" else ""
        attributes: dict[str, Value] = {
            "http.request.method": method,
            "url.scheme": exchange.scheme,
            "cadenza.status": outcome.status,
        }
        if self.request_id.encode() != exchange.request.headers.get(b"x-request-id"):  # else the client chose it
            attributes["cadenza.request_id"] = self.request_id
        if route:
            attributes["http.route"] = route
        if exchange.status:
            attributes["http.response.status_code"] = exchange.status
        if outcome.key_id:
            attributes["cadenza.key_id"] = outcome.key_id
        failure = outcome.fault or outcome.cause or str(outcome.status)
        whole = EndedSpan(
            name=f"{method} {route}" if route else method,
            trace_id=self._trace_id,
            span_id=span_id,
            parent_id=self._parent.span_id if self._parent else b"",
            start_ns=self._ns(exchange.started_s),
            end_ns=self._ns(ended_s),
            kind=SpanKind.SERVER,
            attributes=attributes,
            error=failure if outcome.status >= 500 else "",
        )
        spans = [whole, *self._step_spans(span_id, ended_s, failure)]
        if "held" in self._marks:
            last_s = self._tries[-1].ended_s if self._tries else None
            spans += self._chat_spans(span_id, self._marks.get("relayed", last_s or ended_s), outcome)
        return spans

    def _step_spans(self, parent_id: bytes, ended_s: float, failure: str) -> list[EndedSpan]:
        """One for each step that ended, and one with an error for the step that the request ended in."""
        marks, before_s, last, spans = {**self._marks}, self._exchange.started_s, "", list[EndedSpan]()
        if self.endpoint in CHATS and "finished" not in marks:
            last = NEXT[[*marks][-1] if marks else ""]
            marks[last] = ended_s
        for mark, mark_s in marks.items():
            name = STEPS.get(mark)
            if name and (name != "grounding" or self._parts or mark == last):
                span = self._step(name, parent_id, before_s, mark_s, error=failure if mark == last else "")
                spans.append(span)
                if name == "grounding":
                    spans += self._part_spans(span.span_id)
            before_s = mark_s
        return spans

    def _part_spans(self, parent_id: bytes) -> list[EndedSpan]:
        return [
            self._step(
                f"grounding {part.name}",
                parent_id,
                part.began_s,
                part.ended_s,
                attributes={"cadenza.grounding": part.result},
                error=part.result if part.result in ("failed", "late") else "",
            )
            for part in self._parts
        ]

    def _chat_spans(self, parent_id: bytes, ended_s: float, outcome: Outcome) -> list[EndedSpan]:
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": outcome.class_id,
            "gen_ai.response.id": outcome.completion_id,
        }
        if outcome.provider:
            attributes |= {"gen_ai.provider.name": outcome.provider, "gen_ai.response.model": outcome.model}
        if outcome.version is not None:
            attributes["cadenza.class_version"] = outcome.version
        if outcome.finish_reason:
            attributes["gen_ai.response.finish_reasons"] = (outcome.finish_reason,)
        if usage := outcome.usage:
            attributes["gen_ai.usage.input_tokens"] = usage.prompt_tokens
            attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
            attributes["gen_ai.usage.output_tokens"] = usage.completion_tokens
        began_s = self._marks["held"]
        if self._hold and self._hold.stream:
            attributes["gen_ai.request.stream"] = True
            if "opened" in self._marks:
                attributes["gen_ai.response.time_to_first_chunk"] = round(self._marks["opened"] - began_s, 6)
        chat = EndedSpan(
            name=f"chat {outcome.class_id}",
            trace_id=self._trace_id,
            span_id=self._chat_id,
            parent_id=parent_id,
            start_ns=self._ns(began_s),
            end_ns=self._ns(ended_s),
            kind=SpanKind.CLIENT,
            attributes=attributes,
            error=outcome.fault or ("" if "relayed" in self._marks else outcome.cause or str(outcome.status)),
        )
        return [chat, *(span for one in self._tries for span in self._try_spans(one, ended_s))]

    def _try_spans(self, one: RouteTry, relayed_s: float) -> list[EndedSpan]:
        name, attributes = "route", dict[str, Value]()
        if one.route:
            name = f"route {one.route.name}"
            attributes = {"gen_ai.provider.name": one.route.provider, "gen_ai.request.model": one.route.model}
        if one.status:
            attributes["http.response.status_code"] = one.status
        ended_s = relayed_s if one.ended_s is None else one.ended_s
        spans = [
            EndedSpan(
                name=name,
                trace_id=self._trace_id,
                span_id=one.span_id,
                parent_id=self._chat_id,
                start_ns=self._ns(one.began_s),
                end_ns=self._ns(ended_s),
                kind=SpanKind.CLIENT,
                attributes=attributes,
                error=one.error,
            )
        ]
        if one.answered_s is not None and self._hold and self._hold.stream:
            spans.append(self._step("first token", one.span_id, one.began_s, one.answered_s))
            spans.append(self._step("relay", one.span_id, one.answered_s, ended_s, error=one.error))
        return spans

    def _step(
        self,
        name: str,
        parent_id: bytes,
        began_s: float,
        ended_s: float,
        attributes: dict[str, Value] | None = None,
        error: str = "",
    ) -> EndedSpan:
        return EndedSpan(
            name=name,
            trace_id=self._trace_id,
            span_id=os.urandom(SPAN_ID_BYTES),
            parent_id=parent_id,
            start_ns=self._ns(began_s),
            end_ns=self._ns(ended_s),
            attributes=attributes or {},
            error=error,
        )

    def _ns(self, time_s: float) -> int:
        return self._epoch_ns + int(time_s * 1e9)


class Tracer:
    """Serves requests, and traces some: a share of them by chance, and those whose clients trace them, up to a rate.

    A client cannot have more traced: its trace id has no part in the chance. One without a live key has none traced.
    """

    def __init__(
        self, sample: float, export: Callable[[Sequence[EndedSpan]], None], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._sample = sample
        self._export = export
        self._now_s = now_s
        self._second = 0  # in which requests were traced for their clients last
        self._followed = 0  # how many in it

    def serve(self, gateway: Gateway, exchange: Exchange, endpoint: Endpoint | None = None) -> Awaitable[None]:
        """Serve one request of the API, as `serve_api` does."""
        request = exchange.request
        parent = read_parent(request.fields) if b"traceparent" in request.headers else None
        is_chosen = random.random() < self._sample  # noqa: S311 no secret
        if is_chosen or (parent and parent.is_sampled and self._may_follow()):
            return self._serve_traced(gateway, exchange, endpoint, parent, is_followed=not is_chosen)
        if parent:
            return serve_api(gateway, exchange, endpoint, partial(PassingRecord, parent))
        return serve_api(gateway, exchange, endpoint)

    async def _serve_traced(
        self,
        gateway: Gateway,
        exchange: Exchange,
        endpoint: Endpoint | None,
        parent: TraceParent | None,
        *,
        is_followed: bool,
    ) -> None:
        record, second = TracedRecord(exchange, gateway.observer.at, parent), self._second
        try:
            await serve_api(gateway, exchange, endpoint, lambda *_: record)
        finally:
            if record.principal or not is_followed:
                self._export(record.spans())
            elif second == self._second:  # without a valid key: the next client may be traced instead
                self._followed -= 1

    def _may_follow(self) -> bool:
        second = int(self._now_s())
        if second != self._second:
            self._second, self._followed = second, 0
        if self._followed >= FOLLOWED_PER_S:
            return False
        self._followed += 1
        return True
