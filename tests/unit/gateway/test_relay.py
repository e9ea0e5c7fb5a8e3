"""From an open reply to the client: the one order, pings in silence, counts, and faults after the first byte."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.records import ReplyResult, Usage
from cadenza.core.tokens import count_tokens
from cadenza.gateway.meter import UsageMeter
from cadenza.gateway.relay import PING_S, ReplyHead, relay_stream, relay_whole
from cadenza.http.events import DONE, PING, EventReader
from cadenza.upstreams.base import Fault, FaultKind, PassOn, Piece
from tests.unit.gateway.clients import WAIT_S, Client, let_tasks_run
from tests.unit.gateway.prompts import prompt_of

PROMPT_TOKENS = 17
PROMPT_BYTES = 200
HEAD = ReplyHead("chatcmpl-one", 1_800_000_000, "forte")
FINISH = Piece(finish_reason="stop")
COUNTED = Piece(usage=Usage(9, 3, 4))
PING_EVERY_S = 0.02
SEVERAL_PINGS_S = 6 * PING_EVERY_S


class ScriptedReply:
    """Hands out its steps read by read: pieces, a fault, or an event to wait for before the next."""

    def __init__(self, *steps: list[Piece] | Fault | asyncio.Event) -> None:
        self._steps = iter(steps)

    async def read(self, pass_on: PassOn | None = None) -> list[Piece]:
        for step in self._steps:
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, Fault):
                raise step
            else:
                return step
        return []


def new_tally() -> UsageMeter:
    meter = UsageMeter(prompt_of(PROMPT_TOKENS, PROMPT_BYTES))
    meter.output_limit = 100
    return meter


async def stream(
    client: Client, reply: ScriptedReply, meter: UsageMeter | None = None, ping_s: float = PING_S
) -> tuple[ReplyResult, bytes]:
    async with asyncio.timeout(WAIT_S):
        return await relay_stream(reply, client.exchange(), HEAD, meter or new_tally(), ping_s)


async def whole(*steps: list[Piece] | Fault) -> tuple[ReplyResult, bytes]:
    return await relay_whole(ScriptedReply(*steps), HEAD, new_tally())


def events(sent: bytes) -> list[Any]:
    return [event if event == b"[DONE]" else msgspec.json.decode(event) for event in EventReader().feed(sent)]


async def test_a_stream_has_the_one_order() -> None:
    """Role, content as it came, finish reason, usage, [DONE]: whatever the upstream's own order was."""
    client = Client()
    reply = ScriptedReply([COUNTED, Piece("Hel")], [Piece("lo", "stop")], [Piece()])
    outcome, last = await stream(client, reply)
    first, *content = events(b"".join(client.bodies))
    finish, usage, done = events(last)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"][0]["delta"] for event in content] == [{"content": "Hel"}, {"content": "lo"}]
    assert all(event["choices"][0]["finish_reason"] is None for event in [first, *content])
    assert finish["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert usage["choices"] == []
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (9, 3)
    assert done == b"[DONE]"
    assert outcome == ReplyResult(Usage(9, 3, 4), "stop")


async def test_all_chunks_of_a_stream_share_their_head() -> None:
    """The id, the time and the class are the same on every chunk; only the usage chunk has usage."""
    client = Client()
    _, last = await stream(client, ScriptedReply([Piece("a"), FINISH, COUNTED]))
    *chunks, usage, _ = events(b"".join(client.bodies) + last)
    heads = {(one["id"], one["object"], one["created"], one["model"]) for one in [*chunks, usage]}
    assert heads == {("chatcmpl-one", "chat.completion.chunk", 1_800_000_000, "forte")}
    assert not any("usage" in chunk for chunk in chunks)


async def test_the_last_bytes_are_handed_back_unsent() -> None:
    """Nothing after the last content is sent here: the end leaves when all else is settled."""
    client = Client()
    _, last = await stream(client, ScriptedReply([Piece("a", "stop", Usage(1, 1))]))
    assert last.endswith(DONE)
    assert not any(b'finish_reason":"stop' in body or b"usage" in body for body in client.bodies)
    assert not client.has_end


async def test_pieces_are_written_as_they_come() -> None:
    """A piece is out before the next is read, and pieces that came together leave in one write, a chunk each."""
    client = Client()
    more = asyncio.Event()
    reply = ScriptedReply([Piece("a"), Piece("b")], more, [Piece("c"), FINISH])
    streaming = asyncio.create_task(stream(client, reply))
    await client.sent_body(b'"b"')
    assert len(client.bodies) == 2
    assert not streaming.done()
    more.set()
    await streaming
    assert len(client.bodies) == 3


async def test_pieces_without_content_write_nothing() -> None:
    """Counts, thoughts and empty pieces of the upstream make no chunk of their own."""
    client = Client()
    await stream(client, ScriptedReply([Piece(has_begun=True)], [Piece()], [COUNTED], [FINISH]))
    assert len(client.bodies) == 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1), max_size=6))
def test_a_stream_loses_no_text(texts: list[list[str]]) -> None:
    """However the text is cut into pieces and reads, the client gets all of it in its order."""
    client = Client()
    reply = ScriptedReply(*([Piece(text) for text in together] for together in texts), [FINISH])
    asyncio.run(stream(client, reply))
    deltas = [event["choices"][0]["delta"] for event in events(b"".join(client.bodies))]
    assert "".join(delta["content"] for delta in deltas) == "".join(text for together in texts for text in together)


async def test_a_silent_upstream_is_bridged_by_pings() -> None:
    """While nothing comes the client is pinged, after what was said and before what follows."""
    client = Client()
    silence = asyncio.Event()
    reply = ScriptedReply([Piece("before")], silence, [Piece("after"), FINISH])
    streaming = asyncio.create_task(stream(client, reply, ping_s=PING_EVERY_S))
    await client.sent_body(PING)
    silence.set()
    await streaming
    role, before, *pings, after = client.bodies
    assert b'"role"' in role
    assert b"before" in before
    assert set(pings) == {PING}
    assert b"after" in after


async def test_pings_go_on_while_the_silence_does() -> None:
    """One ping is not all: a long silence has one after another."""
    client = Client()
    silence = asyncio.Event()
    streaming = asyncio.create_task(stream(client, ScriptedReply(silence, [FINISH]), ping_s=PING_EVERY_S))
    await client.sent_body(PING, times=3)
    silence.set()
    await streaming


async def test_no_ping_comes_before_the_first_event() -> None:
    """A client that is slow to take the head of the stream has the first chunk behind it, and no ping before."""
    client = Client()
    client.stalls_at = lambda data: data.startswith(b"HTTP/1.1")
    streaming = asyncio.create_task(stream(client, ScriptedReply([Piece("a"), FINISH]), ping_s=PING_EVERY_S))
    await asyncio.sleep(SEVERAL_PINGS_S)
    [role] = client.bodies
    assert b'"role"' in role
    client.take_more()
    await streaming
    assert PING not in client.bodies


@pytest.mark.parametrize("end", [[FINISH], Fault(FaultKind.TRUNCATED)])
async def test_no_ping_comes_after_the_end(end: list[Piece] | Fault) -> None:
    """Once the last bytes are handed back, nothing more is sent, however long they take to leave."""
    client = Client()
    silence = asyncio.Event()
    streaming = asyncio.create_task(stream(client, ScriptedReply(silence, end), ping_s=PING_EVERY_S))
    await client.sent_body(PING)
    silence.set()
    await streaming
    sent = len(client.sent)
    await asyncio.sleep(SEVERAL_PINGS_S)
    assert len(client.sent) == sent


async def test_pings_do_not_pile_up_before_a_client_that_does_not_read() -> None:
    """While one ping waits to be taken there is no second, and none is left over at the end."""
    client = Client()
    client.stalls_at = lambda data: PING in data
    silence = asyncio.Event()
    streaming = asyncio.create_task(stream(client, ScriptedReply(silence, [FINISH]), ping_s=PING_EVERY_S))
    await client.sent_body(PING)
    await asyncio.sleep(SEVERAL_PINGS_S)
    assert client.bodies.count(PING) == 1
    silence.set()
    await streaming
    await let_tasks_run()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_stream_that_breaks_off_ends_with_an_error_event() -> None:
    """After a fault: a blank line, the error object, no [DONE]; the outcome has the fault and no finish reason."""
    client = Client()
    outcome, last = await stream(client, ScriptedReply([Piece("Hello world")], Fault(FaultKind.TRUNCATED)))
    assert b"Hello world" in client.bodies[1]
    assert last.startswith(b"\ndata: ")
    [error] = events(last)
    assert error["error"]["type"] == "api_error"
    assert error["error"]["message"]
    assert set(error) == {"error"}
    assert outcome == ReplyResult(Usage(PROMPT_TOKENS, 2, estimated=True), None, "truncated")


async def test_a_fault_before_any_content_is_told_all_the_same() -> None:
    """A stream that breaks off right after its head has the error event, and is free: nothing was delivered."""
    outcome, last = await stream(Client(), ScriptedReply(Fault(FaultKind.TRUNCATED)))
    assert b'"api_error"' in last
    assert (outcome.usage.completion_tokens, outcome.is_free) == (0, True)


async def test_the_fault_is_not_named_to_the_client() -> None:
    """Of what went wrong upstream, neither the kind nor the status reaches the client."""
    _, last = await stream(Client(), ScriptedReply(Fault(FaultKind.MALFORMED, 599)))
    assert b"malformed" not in last
    assert b"599" not in last


async def test_the_last_usage_counts() -> None:
    """Usage on every chunk is cumulative: the last one is the count, nothing is summed."""
    pieces = [Piece("a", usage=Usage(9, 1)), Piece("b", usage=Usage(9, 2)), Piece(finish_reason="stop")]
    outcome, _ = await stream(Client(), ScriptedReply(pieces))
    assert outcome.usage == Usage(9, 2)


async def test_zero_is_a_count() -> None:
    """An upstream that says zero is believed; nothing is estimated."""
    outcome, _ = await stream(Client(), ScriptedReply([Piece("some text", "stop", Usage(0, 0))]))
    assert outcome.usage == Usage(0, 0, estimated=False)


async def test_a_missing_usage_is_estimated() -> None:
    """Without a count from upstream, prompt and delivered text are counted here and marked as estimated."""
    outcome, last = await stream(Client(), ScriptedReply([Piece("Hello world")], [FINISH]))
    assert outcome.usage == Usage(PROMPT_TOKENS, count_tokens("Hello world"), estimated=True)
    assert events(last)[1]["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("tool_calls", "stop"),
        ("content_filter", "content_filter"),
        ("end_turn", "stop"),
        ("eos", "stop"),
        ("LENGTH", "stop"),
    ],
)
async def test_finish_reasons_are_the_four_known_ones(said: str, told: str) -> None:
    """The known reasons pass; whatever else an upstream says becomes `stop`."""
    streamed, last = await stream(Client(), ScriptedReply([Piece("a", said)]))
    answered, body = await whole([Piece("a", said)])
    assert events(last)[0]["choices"][0]["finish_reason"] == told
    assert msgspec.json.decode(body)["choices"][0]["finish_reason"] == told
    assert streamed.finish_reason == answered.finish_reason == told


async def test_a_whole_reply_is_one_completion() -> None:
    """Pieces of a reply, however many reads they took, become one completion with its counts."""
    outcome, body = await whole([Piece("Hel")], [Piece("lo"), FINISH, COUNTED])
    completion = msgspec.json.decode(body)
    [choice] = completion["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello", "refusal": None}
    assert (completion["id"], completion["created"]) == ("chatcmpl-one", 1_800_000_000)
    assert (completion["model"], completion["object"]) == ("forte", "chat.completion")
    assert completion["usage"]["total_tokens"] == 12
    assert completion["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert outcome == ReplyResult(Usage(9, 3, 4), "stop")


async def test_a_whole_reply_that_breaks_off_is_a_fault() -> None:
    """Half a reply is not handed out: nothing was sent yet, so the fault is the dispatcher's to answer."""
    with pytest.raises(Fault):
        await whole([Piece("Hel")], Fault(FaultKind.TRUNCATED))


async def test_an_empty_whole_reply_has_empty_content() -> None:
    """A model that says nothing is answered with an empty string, not with null."""
    _, body = await whole([FINISH])
    assert msgspec.json.decode(body)["choices"][0]["message"]["content"] == ""


async def test_what_is_on_its_way_when_the_client_leaves_is_delivered() -> None:
    """A client that takes a part of a long piece and leaves has had it: what was written counts before it is taken."""
    client, meter = Client(), new_tally()
    client.stalls_at = lambda data: b"hello" in data
    streaming = asyncio.create_task(stream(client, ScriptedReply([Piece("hello world")], [FINISH]), meter))
    await client.sent_body(b"hello")
    await let_tasks_run()
    streaming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await streaming
    assert (await meter.count()).completion_tokens == 2


async def test_a_whole_reply_has_delivered_nothing_yet() -> None:
    """The body is sent later: until then a crash or a break must find nothing that was delivered to charge for."""
    meter = new_tally()
    outcome, _ = await relay_whole(ScriptedReply([Piece("hello world", "stop")]), HEAD, meter)
    assert outcome.usage == Usage(PROMPT_TOKENS, 2, estimated=True)
    assert not meter.has_delivered
    assert await meter.count() == Usage(PROMPT_TOKENS, 0, estimated=True)
