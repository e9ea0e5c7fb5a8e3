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
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from cadenza.core.content import Content
from cadenza.core.records import Outcome, ReplyResult, Route
from cadenza.gateway.api import Router
from cadenza.gateway.endpoints import Endpoint
from cadenza.gateway.request import DISCONNECTED_CAUSE, OnStep, RequestRecord
from cadenza.http.exchange import Exchange
from cadenza.ledger.rules import Hold
from cadenza.parts.otlp.spans import CALL, REQUEST, STEP, EndedSpan, Value
from cadenza.parts.otlp.trace_context import TraceParent, read_parent
from cadenza.upstreams.base import Fault

FOLLOWED_PER_S = 10  # requests that are traced because their clients ask for it, in each process
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

    def __init__(self, parent: TraceParent, exchange: Exchange, at: OnStep) -> None:
        super().__init__(exchange, at)
        self.upstream_headers = parent.fields


class OpenSpan(Content, msgspec.Struct):
    """A span as far as it has come, in seconds of the performance counter."""

    name: str
    parent_id: bytes
    began_s: float
    ended_s: float | None = None
    error: str = ""
    kind: "Span.SpanKind.ValueType" = STEP
    attributes: dict[str, Value] = {}
    answered_s: float | None = None  # of a route: when it began to answer
    span_id: bytes = msgspec.field(default_factory=lambda: os.urandom(SPAN_ID_BYTES))


class TracedRecord(RequestRecord):
    """The record of a traced request: it notes when each step ended, and each route that was tried."""

    def __init__(self, exchange: Exchange, at: OnStep, endpoint: Endpoint | None, parent: TraceParent | None) -> None:
        super().__init__(exchange, self._mark)
        self._reached = endpoint
        self.upstream_headers = self._begin_try
        self._fault_point = at
        self._trace_id = parent.trace_id if parent else os.urandom(TRACE_ID_BYTES)
        self._parent = parent
        self._chat_id, self._grounding_id = os.urandom(SPAN_ID_BYTES), os.urandom(SPAN_ID_BYTES)
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()
        self._marks: dict[str, float] = {}
        self._tries: list[OpenSpan] = []
        self._parts: list[OpenSpan] = []  # of grounding
        self._hold: Hold | None = None
        self._outcome: Outcome | None = None

    def _mark(self, name: str) -> None:
        self._marks[name] = time.perf_counter()
        self._fault_point(name)

    def _add_try(self, began_s: float) -> OpenSpan:
        self._tries.append(OpenSpan("route", self._chat_id, began_s, kind=CALL))
        return self._tries[-1]

    def _begin_try(self) -> bytes:
        """The headers for the upstream that is asked now: its span is the parent of what the upstream does."""
        span_id = self._add_try(time.perf_counter()).span_id
        state = self._parent.state if self._parent else b""
        return TraceParent(self._trace_id, span_id, is_sampled=True, state=state).fields()

    def _running_try(self, route: Route) -> OpenSpan:
        """The last attempt that has not ended. The embedded model is not told of the trace, so it begins here."""
        running = self._tries[-1] if self._tries else None
        if running is None or running.ended_s is not None:
            began_s = running.ended_s if running else self._marks.get("held")
            running = self._add_try(began_s or time.perf_counter())
        running.name = f"route {route.name}"
        running.attributes = {"gen_ai.provider.name": route.provider, "gen_ai.request.model": route.model}
        return running

    def _end_try(self, route: Route, error: str, status: int | None = None) -> None:
        running = self._running_try(route)
        running.ended_s, running.error = time.perf_counter(), error
        if status:
            running.attributes["http.response.status_code"] = status

    def held(self, hold: Hold) -> None:
        super().held(hold)
        self._hold = hold

    def routed(self, route: Route) -> None:
        super().routed(route)
        self._running_try(route).answered_s = time.perf_counter()

    def failed(self, route: Route, fault: Fault) -> None:
        super().failed(route, fault)
        self._end_try(route, fault.kind.value, fault.status)

    def broke_off(self, route: Route, fault: Fault) -> None:
        super().broke_off(route, fault)
        self._end_try(route, fault.kind.value, fault.status)

    def left_to(self, route: Route) -> None:
        super().left_to(route)
        self._end_try(route, self._cause or DISCONNECTED_CAUSE)

    def gathered(self, part: str, began_s: float, result: str) -> None:
        span = OpenSpan(f"grounding {part}", self._grounding_id, began_s, time.perf_counter())
        span.attributes, span.error = (
            {"cadenza.grounding": result},
            result if result in ("failed", "late") else "",
        )
        self._parts.append(span)

    def outcome(self, status: int | None = None, result: ReplyResult | None = None) -> Outcome:
        self._outcome = super().outcome(status, result)
        return self._outcome

    def spans(self) -> list[EndedSpan]:
        """The spans of the request, which has ended. The first is the request itself."""
        outcome, ended_s = self._outcome or self.outcome(), time.perf_counter()
        failure = outcome.fault or outcome.cause or str(outcome.status)
        whole = self._whole(outcome, failure if outcome.status >= 500 else "")
        spans = [whole, *self._step_spans(whole.span_id, ended_s, failure)]
        if "held" in self._marks:
            last_s = self._tries[-1].ended_s if self._tries else None
            relayed_s = self._marks.get("relayed", last_s or ended_s)
            chat = self._chat(whole.span_id, relayed_s, outcome)
            spans += [chat, *(span for one in self._tries for span in self._try(one, relayed_s))]
        return [
            EndedSpan(
                name=one.name,
                trace_id=self._trace_id,
                span_id=one.span_id,
                parent_id=one.parent_id,
                start_ns=self._ns(one.began_s),
                end_ns=self._ns(one.ended_s or ended_s),
                kind=one.kind,
                attributes=one.attributes,
                error=one.error,
            )
            for one in spans
        ]

    def _whole(self, outcome: Outcome, error: str) -> OpenSpan:
        exchange = self._exchange
        method, route = exchange.request.method, self._reached.path if self._reached else ""
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
        parent_id = self._parent.span_id if self._parent else b""
        name = f"{method} {route}" if route else method
        return OpenSpan(name, parent_id, exchange.started_s, error=error, kind=REQUEST, attributes=attributes)

    def _step_spans(self, parent_id: bytes, ended_s: float, failure: str) -> list[OpenSpan]:
        """One for each step that ended, and one with an error for the step that the request ended in."""
        marks, before_s, last, spans = {**self._marks}, self._exchange.started_s, "", list[OpenSpan]()
        is_chat = self._reached is not None and self._reached.is_chat and self._reached.name == self.endpoint
        if is_chat and "finished" not in marks:
            last = NEXT[[*marks][-1] if marks else ""]
            marks[last] = ended_s
        for mark, mark_s in marks.items():
            name, error = STEPS.get(mark), failure if mark == last else ""
            if name == "grounding":
                if self._parts or mark == last:
                    grounding = OpenSpan(name, parent_id, before_s, mark_s, error, span_id=self._grounding_id)
                    spans += [grounding, *self._parts]
            elif name:
                spans.append(OpenSpan(name, parent_id, before_s, mark_s, error))
            before_s = mark_s
        return spans

    def _chat(self, parent_id: bytes, ended_s: float, outcome: Outcome) -> OpenSpan:
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
        error = outcome.fault or ("" if "relayed" in self._marks else outcome.cause or str(outcome.status))
        name = f"chat {outcome.class_id}"
        return OpenSpan(name, parent_id, began_s, ended_s, error, CALL, attributes, span_id=self._chat_id)

    def _try(self, one: OpenSpan, relayed_s: float) -> list[OpenSpan]:
        """The attempt on a route and, of a stream, what came before its first token and after it."""
        one.ended_s = relayed_s if one.ended_s is None else one.ended_s
        if one.answered_s is None or not (self._hold and self._hold.stream):
            return [one]
        return [
            one,
            OpenSpan("first token", one.span_id, one.began_s, one.answered_s),
            OpenSpan("relay", one.span_id, one.answered_s, one.ended_s, one.error),
        ]

    def _ns(self, time_s: float) -> int:
        return self._epoch_ns + int(time_s * 1e9)


class Tracer:
    """Serves requests, and traces some: a share of them by chance, and those whose clients trace them, up to a rate.

    A client cannot have more traced: its trace id has no part in the chance. One without a live key has none traced.
    """

    def __init__(
        self,
        router: Router,
        at: OnStep,
        sample: float,
        export: Callable[[Sequence[EndedSpan]], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._router = router
        self._at = at
        self._sample = sample
        self._export = export
        self._now_s = now_s
        self._second = 0  # in which requests were traced for their clients last
        self._followed = 0  # how many in it

    def serve(self, exchange: Exchange, endpoint: Endpoint | None = None) -> Awaitable[None]:
        """Serve one request of the API, as the router does."""
        request = exchange.request
        parent = read_parent(request.fields) if b"traceparent" in request.headers else None
        is_chosen = random.random() < self._sample  # noqa: S311 no secret
        if is_chosen or (parent and parent.is_sampled and self._may_follow()):
            return self._serve_traced(exchange, endpoint, parent, is_followed=not is_chosen)
        if parent:
            return self._router.serve(exchange, endpoint, partial(PassingRecord, parent))
        return self._router.serve(exchange, endpoint)

    async def _serve_traced(
        self, exchange: Exchange, endpoint: Endpoint | None, parent: TraceParent | None, *, is_followed: bool
    ) -> None:
        reached = endpoint or self._router.find(exchange.request.path)
        record, second = TracedRecord(exchange, self._at, reached, parent), self._second
        try:
            await self._router.serve(exchange, endpoint, lambda *_: record)
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
