"""From an open reply to the client: in the sequence that the API promises, whatever the upstream's own was.

Pieces are forwarded as they come and never collected on a stream; `write` waits for the client, so the upstream is read
no faster than the client reads. The last bytes are handed back, not sent: they leave when all else is settled.
Once a byte is out, a failure is an error event and an end without [DONE]; rendered here and nowhere else.
"""

import asyncio
import time

import msgspec

from cadenza.core.chat import Choice, Chunks, Completion, FinishReason, ReplyMessage, new_completion_id, usage_object
from cadenza.core.errors import UpstreamFailed, render_error
from cadenza.core.records import Outcome, Usage
from cadenza.core.sse import DONE, PING, write_event
from cadenza.core.tokens import count_prompt, count_tokens
from cadenza.gateway.call import Call
from cadenza.upstreams.base import Fault, OpenReply, Piece

PING_S = 15.0
FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}


class Tally:
    """What the upstream said of a reply's end, and our own count of what was delivered."""

    def __init__(self, prompt_texts: list[str]) -> None:
        self.finish_reason: FinishReason | None = None
        self._prompt_texts = prompt_texts
        self._usage: Usage | None = None
        self._delivered_tokens = 0

    def take(self, piece: Piece) -> None:
        self._usage = piece.usage or self._usage  # the last one counts; they are never summed
        self._delivered_tokens += count_tokens(piece.content)
        if piece.finish_reason:
            self.finish_reason = FINISH_REASONS.get(piece.finish_reason, "stop")

    async def outcome(self, fault: Fault | None = None) -> Outcome:
        """The upstream's counts, or our own where it gave none."""
        if self._usage is None:
            prompt_tokens = await asyncio.to_thread(count_prompt, self._prompt_texts)
            self._usage = Usage(prompt_tokens, self._delivered_tokens, estimated=True)
        return Outcome(self._usage, self.finish_reason, fault.kind.value if fault else None)


async def relay_whole(reply: OpenReply, class_id: str, tally: Tally) -> tuple[Outcome, bytes]:
    """A non-streaming reply: nothing is sent here, the last bytes are all of it. A Fault goes to the dispatcher."""
    parts = []
    while pieces := await reply.read():
        for piece in pieces:
            tally.take(piece)
            parts.append(piece.content)
    outcome = await tally.outcome()
    assert tally.finish_reason
    completion = Completion(
        id=new_completion_id(),
        created=int(time.time()),
        model=class_id,
        choices=(Choice(message=ReplyMessage(content="".join(parts)), finish_reason=tally.finish_reason),),
        usage=usage_object(outcome.usage),
    )
    return outcome, msgspec.json.encode(completion)


async def relay_stream(
    reply: OpenReply, call: Call, class_id: str, tally: Tally, ping_s: float = PING_S
) -> tuple[Outcome, bytes]:
    """A stream: everything is sent here but its last bytes."""
    chunks = Chunks(new_completion_id(), int(time.time()), class_id)
    await call.start_stream()
    await call.write(chunks.role())
    with Heartbeat(call, ping_s):
        try:
            while pieces := await reply.read():
                for piece in pieces:
                    tally.take(piece)
                if content := b"".join(chunks.content(piece.content) for piece in pieces if piece.content):
                    await call.write(content)
        except Fault as fault:
            error = render_error("The model's answer broke off before its end. Retry.", UpstreamFailed.type)
            return await tally.outcome(fault), b"\n" + write_event(error)
        outcome = await tally.outcome()
    assert tally.finish_reason
    return outcome, chunks.finish(tally.finish_reason) + chunks.usage(outcome.usage) + DONE


class Heartbeat:
    """Sends the client a comment whenever nothing else was sent for a while. One timer a stream, none a chunk."""

    def __init__(self, call: Call, every_s: float) -> None:
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
        quiet_s = self._loop.time() - self._call.written_s
        is_pinging = self._ping is not None and not self._ping.done()
        if quiet_s >= self._every_s and not is_pinging:
            self._ping, quiet_s = self._loop.create_task(self._call.write(PING)), 0.0
        self._timer = self._loop.call_later(max(self._every_s - quiet_s, self._every_s / 10), self._beat)
