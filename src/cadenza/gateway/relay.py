"""From an open reply to the client: in the sequence that the API promises, whatever the upstream's own was.

Pieces are forwarded as they come and never collected on a stream; `write` waits for the client, so the upstream is read
no faster than the client reads. The last bytes are handed back, not sent: they leave when all else is settled.
Once a byte is out, a failure is an error event and an end without [DONE]; rendered here and nowhere else.
"""

import asyncio
import time

import msgspec
from msgspec import UNSET

from cadenza.core.chat import Choice, Completion, ReplyMessage, assemble_calls, usage_object
from cadenza.core.errors import UpstreamFailed, render_error
from cadenza.core.records import ReplyResult
from cadenza.core.tool_calls import ToolCallDelta, ToolCallNormalizer
from cadenza.gateway.chunks import Chunks
from cadenza.gateway.meter import UsageMeter
from cadenza.http.events import DONE, PING, write_event
from cadenza.http.exchange import Exchange
from cadenza.upstreams.base import Fault, OpenReply

PING_S = 15.0


class ReplyHead(msgspec.Struct, frozen=True):
    """What is the same in every part of a reply."""

    completion_id: str
    created: int
    class_id: str
    has_tools: bool = False


async def relay_whole(reply: OpenReply, head: ReplyHead, meter: UsageMeter) -> tuple[ReplyResult, bytes]:
    """A non-streaming reply: nothing is sent here, the last bytes are all of it. A Fault goes to the dispatcher."""
    texts, deltas, normalizer = list[str](), list[ToolCallDelta](), ToolCallNormalizer()
    while pieces := await reply.read():
        for piece in pieces:
            meter.take(piece)
            texts.append(piece.content)
            deltas += normalizer.take(piece.calls if head.has_tools else ())
    deltas += normalizer.finish()
    content = "".join(texts)
    meter.has_calls = bool(deltas)
    if not meter.has_counts:
        await meter.count_whole(content + said_in(deltas))
    outcome = meter.outcome()
    assert meter.finish_reason
    message = ReplyMessage(
        content=None if deltas and not content else content,
        tool_calls=assemble_calls(deltas) if deltas else UNSET,
    )
    completion = Completion(
        id=head.completion_id,
        created=head.created,
        model=head.class_id,
        choices=(Choice(message=message, finish_reason=meter.finish_reason),),
        usage=usage_object(outcome.usage),
    )
    return outcome, msgspec.json.encode(completion)


async def relay_stream(
    reply: OpenReply, call: Exchange, head: ReplyHead, meter: UsageMeter, ping_s: float = PING_S
) -> tuple[ReplyResult, bytes]:
    """A stream: everything is sent here but its last bytes."""
    chunks, normalizer = Chunks(head.completion_id, head.created, head.class_id), ToolCallNormalizer()
    call.start_stream()
    await call.write(chunks.role())

    def pass_on(text: str) -> bool:
        is_sent = call.write_now(chunks.content(text))
        if is_sent:
            meter.deliver(text)
        return is_sent

    with Heartbeat(call, ping_s):
        try:
            while pieces := await reply.read(pass_on):
                for piece in pieces:
                    meter.take(piece)
                texts = [piece.content for piece in pieces if piece.content]
                deltas = normalizer.take(part for piece in pieces for part in piece.calls) if head.has_tools else []
                await _deliver(call, chunks, meter, texts, deltas)
        except Fault as fault:
            error = render_error("The model's answer broke off before its end. Retry.", UpstreamFailed.type)
            if meter.has_delivered and not meter.has_counts:
                await meter.count()
            return meter.outcome(fault), b"\n" + write_event(error)
        await _deliver(call, chunks, meter, [], normalizer.finish())
    if not meter.has_counts:
        await meter.count()
    outcome = meter.outcome()
    assert meter.finish_reason
    return outcome, chunks.finish(meter.finish_reason) + chunks.usage(outcome.usage) + DONE


async def _deliver(
    call: Exchange, chunks: Chunks, meter: UsageMeter, texts: list[str], deltas: list[ToolCallDelta]
) -> None:
    """What is on its way counts as delivered, whoever leaves while it waits to be taken."""
    if texts and call.send(b"".join(map(chunks.content, texts))):
        meter.deliver("".join(texts))
    if deltas and call.send(chunks.calls(deltas)):
        meter.deliver(said_in(deltas))
        meter.has_calls = True
    if texts or deltas:
        await call.room()


def said_in(deltas: list[ToolCallDelta]) -> str:
    """What of calls counts as output: names and arguments."""
    return "".join(delta.name + delta.arguments for delta in deltas)


class Heartbeat:
    """Sends the client a comment whenever nothing else was sent for a while. One timer a stream, none a chunk."""

    def __init__(self, call: Exchange, every_s: float) -> None:
        self._call = call
        self._every_s = every_s
        self._loop = asyncio.get_running_loop()
        self._ping: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(every_s, self._beat)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._ping:
            self._ping.cancel()

    def _beat(self) -> None:
        quiet_s = time.monotonic() - self._call.written_s
        is_pinging = self._ping is not None and not self._ping.done()
        if quiet_s >= self._every_s and not is_pinging:
            self._ping, quiet_s = self._loop.create_task(self._call.write(PING)), 0.0
        self._timer = self._loop.call_later(max(self._every_s - quiet_s, self._every_s / 10), self._beat)
