"""Sends an open reply to the client, in the sequence of events that the API defines.

A relay is the sink of the reply. `run` returns when the reply has ended and everything except the last bytes was sent;
`finish` sends those, after the charge is durable. A stream is not collected: each piece is written as soon as it
arrives, and the upstream is read no faster than the client reads.
"""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from cadenza.core.chat import Choice, Completion, ReplyMessage, assemble_calls, text_of_extras, usage_object
from cadenza.core.content import Content
from cadenza.core.errors import CadenzaError
from cadenza.core.grounding import NO_GROUNDING, GroundedAnswer, Grounding
from cadenza.core.money import Price
from cadenza.core.records import ReplyResult, Usage
from cadenza.core.tool_calls import ToolCallDelta, ToolCallNormalizer, text_of_calls
from cadenza.gateway.answers import Answers
from cadenza.gateway.chunks import Chunks, Events, encode
from cadenza.gateway.meter import UsageMeter
from cadenza.http.exchange import Exchange
from cadenza.upstreams.base import NO_EXTRAS, Fault, OpenReply, Piece

SLICE_CHARS = 50_000  # of an answer with reference material, in one turn of the event loop
BROKE_OFF = "The model's answer broke off before its end. Retry."


class ReplyHead(Content, msgspec.Struct, frozen=True):
    """The fields that every chunk of a reply repeats, its price, and what else is known before it begins."""

    completion_id: str
    created: int
    class_id: str
    price: Price
    has_tools: bool = False
    headers: bytes = b""
    grounding: Grounding = NO_GROUNDING
    shows_cost: bool = False  # the usage of the reply has its cost

    def shown_cost_nano(self, usage: Usage) -> int | None:
        return self.price.charge(usage) + self.grounding.charged_nano if self.shows_cost else None


class WholeRelay(Content, msgspec.Struct, eq=False):
    """A non-streaming reply: collected, then sent at once. `RoutedReply` turns a fault into an error response."""

    answers: Answers
    head: ReplyHead
    meter: UsageMeter
    pieces: list[Piece] = []
    message: ReplyMessage | None = None  # once the reply has ended

    async def run(self, reply: OpenReply) -> ReplyResult:
        await reply.deliver(self)
        meter, grounding, content, has_extras = self.meter, self.head.grounding, "", False
        for piece in self.pieces:
            content += piece.content
            has_extras = has_extras or bool(piece.extras)
        fields = self._joined_extras() if has_extras else {}
        deltas = self._calls() if self.head.has_tools else []
        if deltas:
            meter.has_calls = True
        if meter.needs_count:
            await meter.count_whole(content + text_of_extras(fields) + text_of_calls(deltas))
        if grounding.answer:
            answer = grounding.answer()
            content = await pass_through(answer, content)
            if grounding.sources:
                fields["annotations"] = answer.annotations()
        if deltas:
            fields["tool_calls"] = assemble_calls(deltas)
        if not content and ("tool_calls" in fields or "refusal" in fields):
            fields["content"] = None
        message = ReplyMessage(content=content)
        self.message = msgspec.structs.replace(message, **fields) if fields else message
        return meter.result()

    def finish(self, result: ReplyResult) -> None:
        head = self.head
        assert self.message
        assert result.finish_reason
        completion = Completion(
            id=head.completion_id,
            created=head.created,
            model=head.class_id,
            choices=(Choice(message=self.message, finish_reason=result.finish_reason),),
            usage=usage_object(result.usage, head.shown_cost_nano(result.usage)),
        )
        self.answers.send_json(msgspec.json.encode(completion), head.headers)

    def take(self, piece: Piece) -> None:
        self.meter.take(piece)
        self.pieces.append(piece)

    def take_texts(self, texts: list[str]) -> bool:
        self.pieces += map(Piece, texts)
        return True

    def flush(self) -> bool:
        return True

    async def drain(self) -> None:
        """Never congested."""

    def _calls(self) -> list[ToolCallDelta]:
        normalizer = ToolCallNormalizer()
        deltas = [delta for piece in self.pieces for delta in normalizer.take(piece.calls)]
        return deltas + normalizer.finish()

    def _joined_extras(self) -> dict[str, Any]:
        """The extras of all pieces: texts and lists, joined by name."""
        extras: dict[str, list[Any]] = {}
        for piece in self.pieces:
            for name, value in piece.extras.items():
                extras.setdefault(name, []).append(value)
        return join_extras(extras)


async def pass_through(answer: GroundedAnswer, content: str) -> str:
    """What is left of a whole text. Other requests can run in between."""
    pieces = list[str]()
    for start in range(0, len(content), SLICE_CHARS):
        pieces.append(answer.take(content[start : start + SLICE_CHARS]))
        await asyncio.sleep(0)
    return "".join([*pieces, answer.end()])


def join_extras(parts: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The parts of texts and lists as one, by name."""
    return {
        name: "".join(values) if isinstance(values[0], str) else list(chain.from_iterable(values))
        for name, values in parts.items()
    }


class StreamRelay:
    """A stream. After a fault it ends with an error event and without [DONE]."""

    def __init__(self, exchange: Exchange, answers: Answers, head: ReplyHead, meter: UsageMeter) -> None:
        self._exchange = exchange
        self._answers = answers
        self._head = head
        self._meter = meter
        self._events: Events = Chunks(head.completion_id, head.created, head.class_id)
        self._calls = ToolCallNormalizer() if head.has_tools else None
        self._unsent: list[tuple[bytes, str]] = []  # chunks and their texts, until all that arrived together are here
        self._grounded = head.grounding.answer and head.grounding.answer()
        self._sent_s = math.inf  # when the last chunk was sent, by the monotonic clock

    async def run(self, reply: OpenReply) -> ReplyResult:
        self._answers.start_stream(self._head.headers, self._events.role())
        fault = None
        try:
            await reply.deliver(self)
        except Fault as broken:
            fault = broken
        else:
            self._end()
        finally:
            # A client or an upstream that gives up ends a gap too.
            self._exchange.gap_s = max(self._exchange.gap_s, time.monotonic() - self._sent_s)
        if self._grounded:
            self._take_text(self._grounded.end())
        self.flush()
        if self._meter.needs_count and (fault is None or self._meter.has_delivered):
            await self._meter.count()
        return self._meter.result(fault)

    def finish(self, result: ReplyResult) -> None:
        if result.fault:
            self._answers.break_off(CadenzaError(BROKE_OFF))
            return
        reason, events = result.finish_reason, self._events
        assert reason
        if self._grounded and self._head.grounding.sources:
            self._exchange.write(events.annotations(self._grounded.annotations()))
        cost_nano = self._head.shown_cost_nano(result.usage)
        self._exchange.finish_stream(events.finish(reason) + events.usage(result.usage, cost_nano))

    def take(self, piece: Piece) -> None:
        if piece.usage or piece.finish_reason or piece.has_bad_usage:
            self._meter.take(piece)
        if piece.extras is not NO_EXTRAS and piece.extras:
            self._take_extras(piece.extras)
        if content := piece.content:
            self._take_text(self._grounded.take(content) if self._grounded else content)
        if piece.calls and self._calls:
            self._take_calls(self._calls.take(piece.calls))

    def _end(self) -> None:
        """The reply is complete."""
        if self._calls:
            self._take_calls(self._calls.finish())

    def _take_extras(self, extras: Mapping[str, Any]) -> None:
        self._unsent.append((self._events.extras(extras), text_of_extras(extras)))

    def _take_text(self, text: str) -> None:
        if text:
            self._unsent.append((self._events.content % encode(text), text))

    def _take_calls(self, deltas: list[ToolCallDelta]) -> None:
        if deltas:
            self._unsent.append((b"".join(map(self._events.call, deltas)), text_of_calls(deltas)))
            self._meter.has_calls = True

    def take_texts(self, texts: list[str]) -> bool:
        if self._grounded is not None:
            for text in texts:
                self._take_text(self._grounded.take(text))
            return self.flush()
        content = self._events.content
        if len(texts) == 1:
            return self._send(content % encode(texts[0]), texts[0])
        return self._send(b"".join(map(content.__mod__, map(encode, texts))), "".join(texts))

    def flush(self) -> bool:
        """Send everything that arrived together in one write. False if the client is congested."""
        if not self._unsent:
            return not self._exchange.transport.is_congested
        if len(self._unsent) == 1:
            return self._send(*self._unsent.pop())
        chunks, texts = zip(*self._unsent, strict=True)
        self._unsent.clear()
        return self._send(b"".join(chunks), "".join(texts))

    def _send(self, data: bytes, text: str) -> bool:
        exchange = self._exchange
        if exchange.write(data):
            self._meter.deliver(text)
            sent_s = exchange.last_write_s
            gap_s, self._sent_s = sent_s - self._sent_s, sent_s
            if gap_s > exchange.gap_s:
                exchange.gap_s = gap_s
        return not exchange.transport.is_congested  # a property would take 0.2 µs of each chunk

    async def drain(self) -> None:
        await self._exchange.drain()
