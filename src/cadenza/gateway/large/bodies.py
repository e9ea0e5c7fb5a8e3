"""Parses and counts large bodies in child processes, so that no body can hold up the other requests.

There are two children: one parses, and one counts, which only accounts with credit can ask for. Each works on one body
at a time, and keys take turns. If a child fails, the request is refused and the next one gets a new child.
"""

import asyncio
from functools import partial

import msgspec

from cadenza.core.errors import InvalidRequest, RateLimited
from cadenza.gateway.large.messages import Counted, Kind, Limits, Parsed, Refused, Reply, Span
from cadenza.gateway.large.process import Child, Died, TooHeavy
from cadenza.gateway.large.turns import QueueFull, TurnLimits, Turns
from cadenza.gateway.validate import ChatRequest
from cadenza.observe import Observer
from cadenza.routing.prompt import LargeTexts

MIB = 1024 * 1024
RETRY_S = 2.0
BUSY = "Too many large requests at once. Retry shortly."
HEAVY = "The body takes too long to read. Send fewer or simpler messages and tools."


class LargeLimits(msgspec.Struct, frozen=True):
    """What parsing and counting may use."""

    parse: Limits = Limits(cpu_s=5, memory_bytes=768 * MIB)
    count: Limits = Limits(cpu_s=20, memory_bytes=1024 * MIB)
    task_s: float = 60.0  # by the clock, on a machine that is busy with other things
    turns: TurnLimits = TurnLimits()


class Task(msgspec.Struct, frozen=True):
    """What a child is to do. An urgent task waits as long as it must."""

    kind: Kind
    body: bytes | bytearray
    character: bytes = b""
    is_urgent: bool = False


class LargeBodies:
    """The two child processes of one service process."""

    def __init__(self, observer: Observer, limits: LargeLimits | None = None) -> None:
        limits = limits or LargeLimits()
        self._parser = Lane(observer, limits.parse, limits)
        self._counter = Lane(observer, limits.count, limits)

    async def parse(self, key_id: str, body: bytes | bytearray) -> ChatRequest:
        """The request; 400 if it is invalid, 429 if its turn does not come soon. Its texts stay in the body."""
        reply = await self._parser.run(key_id, Task(Kind.PARSE, body))
        assert isinstance(reply, Parsed)
        texts = LargeTexts(reply.text_chars, partial(self.count, key_id, body))
        return _chat_request(reply, body, texts)

    async def count(
        self, key_id: str, body: bytes | bytearray, character: str, *, is_urgent: bool = False
    ) -> tuple[int, int]:
        """The tokens of the texts of a valid body, and those of the character. An urgent count is never turned away."""
        task = Task(Kind.COUNT, body, character.encode(), is_urgent)
        reply = await self._counter.run(key_id, task)
        assert isinstance(reply, Counted)
        return reply.tokens, reply.character_tokens

    async def stop(self) -> None:
        await self._parser.stop()
        await self._counter.stop()


class Lane:
    """One child process and the tasks that wait for it."""

    def __init__(self, observer: Observer, of_child: Limits, limits: LargeLimits) -> None:
        self._observer = observer
        self._of_child = of_child
        self._task_s = limits.task_s
        self._turns = Turns(limits.turns)
        self._child: Child | None = None

    async def run(self, key_id: str, task: Task) -> Reply:
        try:
            async with self._turns.turn(key_id, is_bounded=not task.is_urgent):
                reply = await self._ask(task)
        except (QueueFull, Died, TimeoutError) as error:
            self._observer.metrics.refused.labels("large_bodies").inc()
            if not isinstance(error, QueueFull):
                self._observer.log.warning("a process for large bodies failed", reason=type(error).__name__)
            raise RateLimited(BUSY, RETRY_S) from None
        except TooHeavy:
            raise InvalidRequest(HEAVY) from None
        if isinstance(reply, Refused):
            raise InvalidRequest(reply.message)
        return reply

    async def _ask(self, task: Task) -> Reply:
        child, self._child = self._child, None
        if child and not child.is_alive:
            await child.end()
            child = None
        child = child or await Child.start(self._of_child)
        try:
            async with asyncio.timeout(self._task_s):
                reply = await child.ask(task.kind, task.body, task.character)
        except (TooHeavy, Died):
            raise
        except BaseException:
            await child.end()
            raise
        self._child = child
        return reply

    async def stop(self) -> None:
        child, self._child = self._child, None
        if child:
            await child.end()


def _chat_request(parsed: Parsed, body: bytes | bytearray, texts: LargeTexts) -> ChatRequest:
    """The request, with views of the body and of what came back instead of copies."""
    sent, extra = memoryview(body), parsed.extra

    def view(span: Span) -> memoryview:
        start, end = span
        return sent[start:end] if start < len(sent) else extra[start - len(sent) : end - len(sent)]

    return ChatRequest(
        model=parsed.model,
        messages=[msgspec.Raw(view(span)) for span in parsed.messages],
        texts=texts,
        stream=parsed.stream,
        max_tokens=parsed.max_tokens,
        sampling={name: msgspec.Raw(view(span)) for name, span in parsed.sampling.items()},
        tools={name: msgspec.Raw(view(span)) for name, span in parsed.tools.items()},
        leading_system=parsed.leading_system,
        system=view(parsed.system),
        has_custom_tools=parsed.has_custom_tools,
    )
