"""The reply that the relay reads: from one route or, where that breaks off and another can go on with it, from more.

Only a stream of the plain path is continued, and only on routes that say `continue`: they are given what was said so
far as the beginning of their own answer. The client sees no seam, and pays for one prompt and one whole answer.
"""

import asyncio

import msgspec

from cadenza.core.errors import CadenzaError
from cadenza.core.records import Plan, Route, Usage
from cadenza.core.tokens import OUTPUT_TOKENS_MIN, count_tokens, output_room
from cadenza.gateway.compose import Prompt
from cadenza.routing.dispatch import Dispatcher, RoutedReply, answer_to
from cadenza.upstreams.base import Ask, Fault, PassOn, Piece


class open_reply:  # noqa: N801 it is used like a function
    """A reply that has begun; 400, 429 or 502 where no route answers."""

    def __init__(self, dispatcher: Dispatcher, plan: Plan, ask: Ask, key_id: str, prompt: Prompt | None = None) -> None:
        self._dispatcher = dispatcher
        self._plan = plan
        self._ask = ask
        self._key_id = key_id
        self._prompt = prompt

    async def __aenter__(self) -> "Reply":
        self._dispatcher.earn_retries()
        plan = self._plan
        first = await self._dispatcher.open_first(plan.class_id, plan.routes, self._ask, self._key_id)
        self._reply = Reply(self._dispatcher, first, plan, self._ask, self._key_id, self._prompt)
        return self._reply

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        await self._reply.close()
        if isinstance(error, Fault):  # it broke off, and nothing of it was sent
            raise answer_to([error], set()) from None


class Reply:
    """A reply, on whichever route it runs. Of its prompt the ask may know no more than the bytes."""

    def __init__(
        self, dispatcher: Dispatcher, first: RoutedReply, plan: Plan, ask: Ask, key_id: str, prompt: Prompt | None
    ) -> None:
        self._dispatcher = dispatcher
        self._running = first
        self._class_id = plan.class_id
        self._ask = ask
        self._key_id = key_id
        self._prompt = prompt
        self._left = [route for route in plan.routes if route.continues and route != first.route]
        self._is_kept = bool(self._left) and is_continuable(ask)
        self._said = ""
        self._is_finished = self._is_closed = False
        self._said_tokens = 0  # before the last seam
        self._first_prompt_tokens: int | None = None  # as the first route counted it

    @property
    def route(self) -> Route:
        return self._running.route

    async def read(self, pass_on: PassOn | None = None) -> list[Piece]:
        """What is kept for another route is read piece by piece; nothing else is in the way of passing it on."""
        while True:
            try:
                pieces = await self._running.reply.read(None if self._is_kept else pass_on)
            except Fault as fault:
                self._running.attempt.note_fault(fault)
                self._dispatcher.note(self.route, fault)
                if not self._is_kept:
                    raise
                await self._go_on(fault)
            else:
                if not pieces:
                    self._running.attempt.note_finish()
                return [self._joined(piece) for piece in pieces] if self._is_kept else pieces

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._running.close()

    def _joined(self, piece: Piece) -> Piece:
        """Keep what is said, and count it as one answer to one prompt."""
        self._said += piece.content
        self._is_finished = self._is_finished or piece.finish_reason is not None
        if piece.usage is None:
            return piece
        usage: Usage | None = piece.usage
        if self._said_tokens:
            usage = self._whole(piece.usage)
        else:
            self._first_prompt_tokens = piece.usage.prompt_tokens
        if not self._is_finished:  # counts of a part must not stand for the whole
            usage = None
        return msgspec.structs.replace(piece, usage=usage)

    def _whole(self, last: Usage) -> Usage:
        """The last route counts what was said before it into its prompt; clients are not charged for it twice."""
        prompt_tokens = self._first_prompt_tokens
        if prompt_tokens is None:
            prompt_tokens = max(0, last.prompt_tokens - self._said_tokens)
        return Usage(
            prompt_tokens,
            last.completion_tokens + self._said_tokens,
            min(last.cached_tokens, prompt_tokens),
            estimated=True,  # what was said before the seam is our own count
        )

    async def _go_on(self, fault: Fault) -> None:
        """Where no route can, the fault stays what it was."""
        said_tokens = await asyncio.to_thread(count_tokens, self._said)
        prompt_tokens = await self._prompt.count() if self._prompt else self._ask.prompt_tokens
        ask = _begun(self._ask, prompt_tokens, self._said, said_tokens)
        routes = [route for route in self._left if output_room(route, ask.prompt_tokens) >= OUTPUT_TOKENS_MIN]
        if not routes or (ask.max_tokens is not None and ask.max_tokens < 1) or not self._dispatcher.may_retry():
            raise fault
        await self.close()
        try:
            self._running = await self._dispatcher.open_first(self._class_id, routes, ask, self._key_id)
        except CadenzaError:
            raise fault from None
        self._is_closed = False
        self._left.remove(self.route)
        self._said_tokens = said_tokens
        self._dispatcher.note_seam(self.route)


def is_continuable(ask: Ask) -> bool:
    """Calls, and an answer whose form is held to a grammar, cannot be taken up in the middle."""
    return ask.stream and not ask.tools and "response_format" not in ask.sampling


def _begun(ask: Ask, prompt_tokens: int, said: str, said_tokens: int) -> Ask:
    return msgspec.structs.replace(
        ask,
        begun=said,
        prompt_tokens=prompt_tokens + said_tokens,
        max_tokens=None if ask.max_tokens is None else ask.max_tokens - said_tokens,
    )
