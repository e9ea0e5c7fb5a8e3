"""From an open reply to the client: the promised sequence, counts, backpressure, and faults in a stream."""

import asyncio
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.faults import FaultKind
from cadenza.core.money import Price
from cadenza.core.records import ReplyResult, Usage
from cadenza.gateway.answers import Answers
from cadenza.gateway.chunks import Chunks, encode
from cadenza.gateway.meter import UsageMeter
from cadenza.gateway.relay import ReplyHead, StreamRelay
from cadenza.http.events import DONE, EventReader
from cadenza.upstreams.base import Fault, Piece
from tests.grounded_answer import cited
from tests.unit.gateway.client import WAIT_S, Client, let_tasks_run
from tests.unit.gateway.prompts import TOKENIZER, prompt_of
from tests.unit.gateway.scripted_upstream import ScriptedReply, Step

PROMPT_TOKENS = 17
PRICE = Price(1_070, 3_450)
HEAD = ReplyHead("chatcmpl-one", 1_800_000_000, "forte", PRICE)
FINISH = Piece(finish_reason="stop")

CHUNK_HEAD = {"id": "chatcmpl-x", "object": "chat.completion.chunk", "created": 1_800_000_000, "model": "forte"}

texts = st.text(st.characters(exclude_categories=["Cs"]))


def new_meter() -> UsageMeter:
    prompt = prompt_of(PROMPT_TOKENS, 200)
    meter = UsageMeter(prompt, 100)
    meter.bound(10_000)
    return meter


class Stream:
    """A stream to one client."""

    def __init__(self, *steps: Step, head: ReplyHead = HEAD) -> None:
        self.client = Client()
        self.reply = ScriptedReply(*steps)
        self.meter = new_meter()
        self.exchange = exchange = self.client.open()
        self.relay = StreamRelay(exchange, Answers(exchange, "r1"), head, self.meter)

    async def run(self) -> ReplyResult:
        async with asyncio.timeout(WAIT_S):
            return await self.relay.run(self.reply)

    async def run_and_finish(self) -> ReplyResult:
        """Run it to its last byte."""
        result = await self.run()
        self.relay.finish(result)
        return result

    @property
    def events(self) -> list[Any]:
        return events(b"".join(self.client.bodies))


def events(sent: bytes) -> list[Any]:
    return [event if event == b"[DONE]" else msgspec.json.decode(event) for event in EventReader().feed(sent)]


async def test_the_last_bytes_are_sent_by_finish() -> None:
    """`run` sends nothing after the last content: the end of the stream waits for the charge."""
    stream = Stream(Piece("a", "stop", Usage(1, 1)))
    result = await stream.run()
    assert not any(b'finish_reason":"stop' in body or b"usage" in body for body in stream.client.bodies)
    assert not stream.client.has_end
    stream.relay.finish(result)
    assert stream.client.bodies[-1].endswith(DONE)
    assert stream.client.has_end


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=12))
def test_a_stream_loses_no_text(texts: list[str]) -> None:
    """However the text is split into pieces, the client gets all of it in order."""

    async def received() -> str:
        stream = Stream(*map(Piece, texts), FINISH)
        await stream.run()
        return "".join(event["choices"][0]["delta"]["content"] for event in stream.events)

    assert asyncio.run(received()) == "".join(texts)


async def test_an_upstream_is_not_read_while_the_client_is_congested() -> None:
    """The piece that congests the exchange is the last one read until the client reads again."""
    stream = Stream(Piece("a"), Piece("stall"), Piece("b"), FINISH)
    stream.client.stalls_at = lambda data: b"stall" in data
    streaming = asyncio.create_task(stream.run())
    await stream.client.until_sent(b"stall")
    await let_tasks_run()
    assert (stream.reply.pieces_read, streaming.done()) == (2, False)
    stream.client.read_again()
    await streaming
    assert stream.reply.pieces_read == 4
    assert b'"b"' in stream.client.bodies[-1]


async def test_the_longest_gap_of_a_stream_is_noted() -> None:
    """It is at least the time in which nothing was sent; a stream that never began has none."""
    stream, unbegun = Stream(Piece("stall"), Piece("b"), FINISH), Stream(Fault(FaultKind.TRUNCATED))
    stream.client.stalls_at = lambda data: b"stall" in data
    streaming = asyncio.create_task(stream.run())
    await stream.client.until_sent(b"stall")
    began_s = time.monotonic()
    await let_tasks_run()
    silent_s = time.monotonic() - began_s
    stream.client.read_again()
    await streaming
    await unbegun.run()
    assert stream.exchange.gap_s >= silent_s > 0
    assert unbegun.exchange.gap_s == 0


async def test_text_that_may_become_a_tag_is_not_lost_in_a_fault() -> None:
    """With reference material, the end of the text waits for the next piece; if none comes, it is still sent."""
    head = msgspec.structs.replace(HEAD, grounding=cited())
    stream = Stream(Piece("a </refer"), Fault(FaultKind.TRUNCATED), head=head)
    result = await stream.run_and_finish()
    said = [event["choices"][0]["delta"].get("content", "") for event in stream.events if "choices" in event]
    assert "".join(said) == "a </refer"
    assert result.usage.completion_tokens == TOKENIZER.count("a </refer")


async def test_bytes_in_the_transport_count_as_delivered() -> None:
    """A client that disconnects before it reads what was written is charged for it."""
    stream = Stream(Piece("hello world"), FINISH)
    stream.client.stalls_at = lambda data: b"hello" in data
    streaming = stream.client.run(stream.run())
    await stream.client.until_sent(b"hello")
    stream.client.disconnect()
    with pytest.raises(asyncio.CancelledError):
        await streaming
    assert (await stream.meter.count()).completion_tokens == 2


async def test_nothing_is_delivered_after_a_disconnect() -> None:
    """Pieces that arrive for a client that is gone are neither sent nor counted."""
    pause = asyncio.Event()
    stream = Stream(Piece("hello world"), pause, Piece(" and more"), FINISH)
    streaming = asyncio.create_task(stream.run())
    await stream.client.until_sent(b"hello")
    sent = len(stream.client.sent)
    stream.client.disconnect()
    pause.set()
    await streaming
    assert len(stream.client.sent) == sent
    assert (await stream.meter.count()).completion_tokens == 2


def chunks() -> Chunks:
    return Chunks("chatcmpl-x", 1_800_000_000, "forte")


def decode(event: bytes) -> Any:
    """The JSON of one event, which must be a single line."""
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    assert b"\r" not in event
    return msgspec.json.decode(event.removeprefix(b"data: "))


def choice(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {**CHUNK_HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


@given(texts)
def test_a_content_chunk_holds_any_text(text: str) -> None:
    """For any text the chunk is one event of valid JSON that holds it unchanged."""
    assert decode(chunks().content % encode(text)) == choice({"content": text})
