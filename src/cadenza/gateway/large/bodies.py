"""Parses and counts very large bodies in child processes, so that no body can hold up the other requests.

There are two children: one translates and parses, and one counts, which only accounts with credit can ask for. Each
works on one body at a time, and accounts take turns, by the CPU time that their bodies took. If a child fails, the
request is refused and the next one gets a new child. What is only long is counted here, a part at a time (counted.py).
"""

from functools import partial

import msgspec

from cadenza.children.confine import ChildLimits
from cadenza.children.lane import Lane, LaneSettings
from cadenza.children.process import Buffer, Died, TooHeavy
from cadenza.children.turns import OverBudget, QueueFull, TurnLimits
from cadenza.core.chat import ChatRequest, FilePart, LargeTexts
from cadenza.core.errors import InvalidRequest, RateLimited
from cadenza.core.tokens import Tokenizer
from cadenza.gateway.large.counted import CountedMessages, Measure
from cadenza.gateway.large.tasks import REPLIES, Counted, InvalidBody, Parsed, Reply, Span, Task, Translated
from cadenza.observe import Observer

CHILD = "cadenza.gateway.large.child"
MIB = 1024 * 1024
RETRY_S = 2.0
BUSY = "Too many large requests at once. Retry shortly."
OVER_BUDGET = "This account's large requests have used up their CPU time, and those of other accounts go first. Retry."
HEAVY = "The body takes too long to read. Send fewer or simpler messages and tools."


class LargeLimits(msgspec.Struct, frozen=True):
    """What parsing and counting may use."""

    parse: ChildLimits = ChildLimits(cpu_s=2, memory_bytes=768 * MIB)
    count: ChildLimits = ChildLimits(cpu_s=20, memory_bytes=1024 * MIB)
    task_s: float = 30.0  # by the clock, on a machine that is busy with other things
    turns: TurnLimits = TurnLimits()


class LargeBodies:
    """The two child processes of one service process, and the counts of what it parsed by itself."""

    def __init__(
        self, observer: Observer, tokenizer: Tokenizer | None = None, limits: LargeLimits | None = None
    ) -> None:
        self._limits = limits = limits or LargeLimits()
        self._counted = CountedMessages(tokenizer or Tokenizer())
        self.counting: set[str] = set()  # accounts for which a long prompt is being counted for free
        self._observer = observer
        self.parse_with(CHILD)
        self._counter = Lane(LaneSettings(CHILD, limits.count, limits.task_s, limits.turns))

    def parse_with(self, module: str) -> None:
        """Translate and parse with this program, from the first body on."""
        limits = self._limits
        self._parser = Lane(LaneSettings(module, limits.parse, limits.task_s, limits.turns))

    async def translate(self, account_id: str, protocol: str, body: bytes | bytearray) -> Translated:
        """The body of another protocol as a chat body; 400 if it cannot be one, 429 if its turn does not come soon."""
        reply = await self._run(self._parser, account_id, Task("translate", protocol=protocol), body)
        assert isinstance(reply, Translated)
        return reply

    async def parse(self, account_id: str, body: Buffer) -> ChatRequest:
        """The request; 400 if it is invalid, 429 if its turn does not come soon. Its texts stay in the body."""
        reply = await self._run(self._parser, account_id, Task("parse"), body)
        assert isinstance(reply, Parsed)
        texts = LargeTexts(reply.text_chars, partial(self.count, account_id, body))
        return _chat_request(reply, body, texts)

    def texts_of(self, chat: ChatRequest, key_id: str, measure: Measure) -> LargeTexts:
        """The texts of a long request. Those of a body that a child has parsed are counted by a child too."""
        return chat.texts if type(chat.texts) is LargeTexts else self._counted.texts_of(chat, key_id, measure)

    async def count(self, account_id: str, body: Buffer, character: str, *, is_urgent: bool = False) -> int:
        """The tokens of the character and the texts of a valid body. An urgent count waits without a limit."""
        reply = await self._run(self._counter, account_id, Task("count", character), body, is_urgent=is_urgent)
        assert isinstance(reply, Counted)
        return reply.tokens

    async def stop(self) -> None:
        await self._parser.stop()
        await self._counter.stop()

    async def _run(self, lane: Lane, account_id: str, task: Task, body: Buffer, *, is_urgent: bool = False) -> Reply:
        try:
            answer = await lane.run(account_id, msgspec.msgpack.encode(task), [body], is_bounded=not is_urgent)
        except (QueueFull, Died, TimeoutError) as error:
            self._observer.metrics.refused.labels("large_bodies").inc()
            if not isinstance(error, QueueFull):
                self._observer.log.warning("a process for large bodies failed", reason=type(error).__name__)
            retry_s = error.retry_s if isinstance(error, QueueFull) else RETRY_S
            raise RateLimited(OVER_BUDGET if isinstance(error, OverBudget) else BUSY, retry_s, "large_bodies") from None
        except TooHeavy:
            raise InvalidRequest(HEAVY) from None
        reply = REPLIES.decode(answer)
        if isinstance(reply, InvalidBody):
            raise InvalidRequest(reply.message)
        return reply


def _chat_request(parsed: Parsed, body: Buffer, texts: LargeTexts) -> ChatRequest:
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
        needs=parsed.needs,
        question=parsed.question,
        files=tuple(
            FilePart(message, start, end, name, msgspec.Raw(view(data)))
            for message, start, end, name, data in parsed.files
        ),
        media=parsed.media,
        extra={name: msgspec.Raw(view(span)) for name, span in parsed.extra_fields.items()},
        wants_cost=parsed.wants_cost,
    )
