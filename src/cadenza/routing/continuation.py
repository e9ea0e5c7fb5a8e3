"""The open reply that a relay delivers. If its route breaks off, another route can continue it.

Only streams without tools are continued, and only on routes with `continue = true`: these get the text so far as the
start of their own answer. The client sees one answer, and pays for one prompt and one answer.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Self

import msgspec

from cadenza.core.attempts import CONTINUATION, CONTINUED
from cadenza.core.errors import CadenzaError
from cadenza.core.records import BilledPart, Route, Usage
from cadenza.core.tokens import OUTPUT_TOKENS_MIN, output_room
from cadenza.routing.dispatch import Dispatch, Dispatcher, error_for
from cadenza.routing.health import Attempt
from cadenza.upstreams.base import Ask, Fault, OpenReply, Piece, Sink


class RoutedReply:
    """An open reply for the block, on the route that runs it now; 400, 429 or 502 if no route answers.

    `on_route` gets each route that begins to answer.
    """

    route: Route
    _attempt: Attempt
    _reply: OpenReply | None = None  # None before it is open, and when it is closed

    def __init__(self, dispatcher: Dispatcher, wanted: Dispatch, on_route: Callable[[Route], None]) -> None:
        self._dispatcher = dispatcher
        self._wanted = wanted
        self._on_route = on_route

    async def __aenter__(self) -> Self:
        self._dispatcher.budget.earn()
        self._run_on(await self._dispatcher.open_first(self._wanted, self._wanted.plan.routes))
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        await self.close()
        if isinstance(error, Fault):  # a non-streaming reply broke off before anything was sent
            raise error_for([error], set()) from None

    def _run_on(self, opened: tuple[Route, OpenReply, Attempt]) -> None:
        self.route, self._reply, self._attempt = opened
        self._on_route(self.route)

    async def deliver(self, sink: Sink) -> None:
        routes = self._routes_that_continue()
        continued = ContinuedSink(sink) if routes else None
        while True:
            assert self._reply
            try:
                await self._reply.deliver(continued or sink)
            except Fault as fault:
                self._wanted.ask.on_asked(None)
                self._attempt.record_fault(fault)
                self._wanted.record.broke_off(self.route, fault)
                self._dispatcher.report_fault(self._wanted, self.route, fault)
                if continued is None:
                    if not self._wanted.ask.stream:  # nothing was delivered, so nothing is charged
                        self._dispatcher.attempts.add(self.route, fault.kind.value)
                    raise
                await self._continue(continued, routes, fault)
                routes.remove(self.route)
            else:
                self._attempt.record_finish()
                return

    async def close(self) -> None:
        reply, self._reply = self._reply, None
        if reply:
            try:
                await reply.close()
            finally:
                self._attempt.end()

    def _routes_that_continue(self) -> list[Route]:
        """Tool calls and structured output cannot be continued."""
        ask = self._wanted.ask
        if not ask.stream or ask.tools or "response_format" in ask.sampling:
            return []
        return [route for route in self._wanted.plan.routes if route.continues and route != self.route]

    async def _continue(self, continued: "ContinuedSink", routes: Sequence[Route], fault: Fault) -> None:
        """Open the rest of the reply on another route. If none can continue it, raise the fault again."""
        begun_tokens = await asyncio.to_thread(self._dispatcher.tokenizer.count, continued.text)
        prompt_tokens, broken = await self._wanted.prompt.count(), self.route
        ask = _begun(self._wanted.ask, prompt_tokens, continued.text, begun_tokens)
        fitting = [route for route in routes if output_room(route, ask.prompt_tokens) >= OUTPUT_TOKENS_MIN]
        if not fitting or (ask.max_tokens is not None and ask.max_tokens < 1) or not self._dispatcher.may_retry():
            raise fault
        await self.close()
        try:
            wanted = msgspec.structs.replace(self._wanted, ask=ask)
            self._run_on(await self._dispatcher.open_first(wanted, fitting))
        except CadenzaError:
            raise fault from None
        continued.begun_tokens = begun_tokens
        first, further = (prompt_tokens, begun_tokens), (begun_tokens, -begun_tokens)
        for route, kind, tokens in ((broken, CONTINUED, first), (self.route, CONTINUATION, further)):
            self._dispatcher.attempts.add(route, kind, *tokens)
            self._wanted.record.also_billed += (BilledPart(route.provider, route.model, *tokens),)
        self._dispatcher.metrics.continued.labels(self.route.provider).inc()


class ContinuedSink:
    """The sink of a reply that may be continued: it keeps the text, and adds up the counts of one answer."""

    def __init__(self, sink: Sink) -> None:
        self.begun_tokens = 0  # of the answer so far, by the routes before this one
        self.flush, self.drain = sink.flush, sink.drain
        self._sink = sink
        self._texts: list[str] = []
        self._is_finished = False
        self._first_prompt_tokens: int | None = None  # as the first route counted it

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def take(self, piece: Piece) -> None:
        self._texts.append(piece.content)
        self._is_finished = self._is_finished or piece.finish_reason is not None
        if piece.usage:
            piece = msgspec.structs.replace(piece, usage=self._usage_of_all(piece.usage))
        self._sink.take(piece)

    def take_texts(self, texts: list[str]) -> bool:
        self._texts += texts
        return self._sink.take_texts(texts)

    def _usage_of_all(self, last: Usage) -> Usage | None:
        """The last route counts the text before it as prompt; the client is not charged for it twice."""
        if not self._is_finished:  # the route broke off: its counts are of a part only
            if not self.begun_tokens:
                self._first_prompt_tokens = last.prompt_tokens
            return None
        if not self.begun_tokens:
            return last
        prompt_tokens = self._first_prompt_tokens
        if prompt_tokens is None:
            prompt_tokens = max(0, last.prompt_tokens - self.begun_tokens)
        return Usage(
            prompt_tokens,
            last.completion_tokens + self.begun_tokens,
            min(last.cached_tokens, prompt_tokens),
            estimated=True,  # the text before the last route is our own count
        )


def _begun(ask: Ask, prompt_tokens: int, begun: str, begun_tokens: int) -> Ask:
    """The ask for the rest of an answer that has begun with `begun`."""
    return msgspec.structs.replace(
        ask,
        begun=begun,
        prompt_tokens=prompt_tokens + begun_tokens,
        max_tokens=None if ask.max_tokens is None else ask.max_tokens - begun_tokens,
        counted_bytes=None if ask.counted_bytes is None else ask.counted_bytes + len(msgspec.json.encode(begun)),
    )
