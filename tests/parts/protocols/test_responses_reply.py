"""POST /v1/responses in one process: the events of a stream, the whole response, errors, large bodies and charges."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.faults import FaultKind
from cadenza.core.grounding import Source
from cadenza.core.records import Usage
from cadenza.core.tool_calls import ToolCallPart
from cadenza.fleet.presence import Presence
from cadenza.gateway.answers import Answers
from cadenza.gateway.chat import LARGE_BYTES
from cadenza.gateway.relay import BROKE_OFF, ReplyHead
from cadenza.http.events import PING
from cadenza.http.exchange import Exchange, Interruption
from cadenza.parts.protocols.responses_reply import StreamedResponse, WholeResponse
from cadenza.parts.protocols.responses_request import unwrap_reasoning
from cadenza.parts.protocols.run import CHILD
from cadenza.parts.protocols.translation import Kept
from cadenza.upstreams.base import Fault, Overflow, Piece
from tests.grounded_answer import TAG
from tests.grounded_answer import cited as grounded
from tests.parts.protocols.generated.checks import assemble_items
from tests.unit.gateway.client import Client
from tests.unit.gateway.funded_store import FORTE, FUNDED_NANO, FundedStore
from tests.unit.gateway.gateways import (
    PROVIDER,
    REQUEST_ID,
    ROUTE,
    Api,
    make_gateway,
    running,
    running_api,
    snapshot_of,
)
from tests.unit.gateway.scripted_upstream import ScriptedReply, ScriptedUpstream
from tests.unit.gateway.test_relay import HEAD, PRICE, new_meter

TOOLS = [{"type": "function", "name": "look"}]
USED = Usage(9, 5, 2, completion_details={"reasoning_tokens": 3})
CALLING = ReplyHead("chatcmpl-one", 1_800_000_000, "forte", PRICE, has_tools=True)
NAMES = {"files__look": ("files", "look")}
KEPT = Kept(names=NAMES, is_encrypted=True)
FAILED_EARLY = ["response.created", "response.in_progress", "error", "response.failed"]
FINISHED = {"stop": "completed", "tool_calls": "completed", "length": "incomplete", "content_filter": "incomplete"}


@pytest.fixture
async def api(funded: FundedStore) -> AsyncIterator[Api]:
    async with running_api(funded, ScriptedUpstream(Piece("ye"), Piece("s", "stop", USED))) as running:
        yield running


def ask(api: Api, client: Client, *, body: bytes | None = None, **fields: Any) -> Exchange:
    body = body or json.dumps({"input": "hi", **fields}).encode()
    headers = [*api.funded.key_headers, (b"x-request-id", REQUEST_ID.encode())]
    return client.open(headers, path="/v1/responses", body=body)


async def reply_to(api: Api, **fields: Any) -> Client:
    client = Client()
    ask(api, client, **fields)
    await client.serve(api.gateway)
    return client


def events_of(client: Client) -> list[Any]:
    """The events, each with its name in both places and with the next number."""
    events = []
    for number, event in enumerate(filter(None, b"".join(client.bodies).replace(PING, b"").split(b"\n\n"))):
        name, data = event.strip(b"\n").split(b"\n")
        events.append(json.loads(data.removeprefix(b"data: ")))
        assert name == b"event: " + events[-1]["type"].encode()
        assert events[-1]["sequence_number"] == number
    return events


class Replies:
    """One reply, streamed and whole."""

    def __init__(self, *steps: Piece | Exception, head: ReplyHead = CALLING) -> None:
        self._steps, self._head = steps, head

    async def stream(self) -> list[Any]:
        client = Client()
        answers = Answers(client.open(), "r1")
        relay = StreamedResponse(client.exchange, answers, self._head, new_meter(), KEPT)
        relay.finish(await relay.run(ScriptedReply(*self._steps)))
        return events_of(client)

    async def whole(self) -> Any:
        client = Client()
        relay = WholeResponse.of(KEPT, Answers(client.open(), "r1"), self._head, new_meter())
        relay.finish(await relay.run(ScriptedReply(*self._steps)))
        return json.loads(client.bodies[0])


def without_call_ids(output: list[Any]) -> list[Any]:
    """Each reply has call ids of its own."""
    return [{**item, "call_id": bool(item.get("call_id"))} for item in output]


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
parts = st.lists(words, min_size=1, max_size=3)
thoughts = st.fixed_dictionaries(
    {}, optional={"reasoning_content": words, "refusal": words, "reasoning_details": st.just([{"a": 1}])}
)
called = st.builds(
    lambda index, custom, name, texts: [
        ToolCallPart(index, f"up{index}" if not number else "", name if not number else "", text, custom)
        for number, text in enumerate(texts)
    ],
    st.integers(0, 3),
    st.sampled_from(["function", "custom"]),
    st.sampled_from(["look", "files__look"]),
    parts,
)
pieces = st.one_of(
    words.map(Piece),
    thoughts.map(lambda extras: Piece(extras=extras)),
    called.flatmap(lambda calls: st.just([Piece(calls=(one,)) for one in calls])),
)


@given(st.lists(pieces, max_size=8), st.sampled_from([*FINISHED, ""]))
def test_the_events_of_a_stream_assemble_to_the_whole_response(given_pieces: list[Any], finish: str) -> None:
    """Text, reasoning, refusals and calls in any order, complete, cut or broken off."""
    steps = [piece for one in given_pieces for piece in (one if isinstance(one, list) else [one])]
    last = Piece(finish_reason=finish, usage=USED) if finish else Fault(FaultKind.TRUNCATED)
    replies = Replies(*steps, last)
    events = asyncio.run(replies.stream())
    end, items = events[-1], assemble_items(events[:-1])
    assert [one["type"] for one in events[:2]] == ["response.created", "response.in_progress"]
    status = FINISHED.get(finish, "failed")
    assert (end["type"], end["response"]["status"]) == (f"response.{status}", status)
    done = {one["output_index"] for one in events if one["type"] == "response.output_item.done"}
    for index, (item, shown) in enumerate(zip(items, end["response"]["output"], strict=True)):
        known = item if index in done else {**item, "status": "incomplete"}
        assert known == {name: shown[name] for name in known}
        assert status != "completed" or (index in done and shown["status"] == "completed")
        assert status == "completed" or index not in done or "call" not in shown["type"], "a call that may be cut"
    if finish:
        whole = asyncio.run(replies.whole())
        assert without_call_ids(whole.pop("output")) == without_call_ids(end["response"].pop("output"))
        assert whole == end["response"]


async def test_every_event_of_a_reply() -> None:
    """The sequence that the SDK of OpenAI expects, with the namespace of a call and the counts of tokens."""
    call = ToolCallPart(0, "up", "files__look", "{}")
    said = [Piece(extras={"reasoning_content": "hm"}), Piece("a"), Piece("b"), Piece(calls=(call,))]
    events = await Replies(*said, Piece(finish_reason="tool_calls", usage=USED)).stream()
    assert [one["type"].removeprefix("response.") for one in events] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_item.added", "function_call_arguments.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("function_call_arguments.done", "output_item.done", "completed"),
    ]
    response = events[-1]["response"]
    reasoning, message, made = response["output"]
    assert unwrap_reasoning(reasoning["encrypted_content"]) == {"reasoning_content": "hm"}
    assert message["content"] == [{"type": "output_text", "text": "ab", "annotations": [], "logprobs": []}]
    assert (made["namespace"], made["name"], made["arguments"]) == ("files", "look", "{}")
    assert made["call_id"].startswith("call_")
    assert response["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 14,
    }
    assert (response["id"], response["store"], response["model"]) == ("resp_one", False, "forte")


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
async def test_a_cut_reply_is_incomplete(finish: str, reason: str) -> None:
    """It says why, and no client is told to make a call that may be cut."""
    call = Piece(calls=(ToolCallPart(0, "up", "look", '{"a":'),))
    events = await Replies(Piece("a"), call, Piece(finish_reason=finish, usage=USED)).stream()
    response = events[-1]["response"]
    assert (events[-1]["type"], response["incomplete_details"]) == ("response.incomplete", {"reason": reason})
    assert [one["item"]["type"] for one in events if one["type"] == "response.output_item.done"] == ["message"]
    assert [item["status"] for item in response["output"]] == ["incomplete", "incomplete"]


async def test_sources_are_annotations() -> None:
    """As events before the end of the text, and in the text of the response; tags of grounding are removed."""
    source = Source("https://a.example", "A")
    head = ReplyHead("chatcmpl-one", 1, "forte", PRICE, grounding=grounded(source))
    replies = Replies(Piece("It is so [1]"), Piece(f"{TAG}.", "stop", USED), head=head)
    events, whole = await replies.stream(), await replies.whole()
    cited = {"type": "url_citation", "url": "https://a.example", "title": "A", "start_index": 9, "end_index": 12}
    [added] = [one for one in events if one["type"] == "response.output_text.annotation.added"]
    assert (added["annotation"], added["annotation_index"]) == (cited, 0)
    assert events[-1]["response"] == whole
    [text] = whole["output"][0]["content"]
    assert (text["text"], text["annotations"]) == ("It is so [1].", [cited])


async def test_texts_that_arrive_together_are_one_write() -> None:
    """Each is an event of its own."""
    client = Client()
    relay = StreamedResponse(client.open(), Answers(client.exchange, "r1"), HEAD, new_meter(), Kept())

    class Reply(ScriptedReply):
        async def deliver(self, sink: Any) -> None:
            sink.take_texts(["a", "b%d"])
            sink.take_texts(["c"])
            sink.take(Piece(finish_reason="stop", usage=USED))

    relay.finish(await relay.run(Reply()))
    assert [body.count(b"output_text.delta\n") for body in client.bodies] == [0, 2, 1, 0]
    assert assemble_items(events_of(client)[:-1])[0]["content"][0]["text"] == "ab%dc"


async def test_a_response_is_a_chat(api: Api) -> None:
    """Its key, rate and charge are those of a chat; the log has its own name; model names stand for a class."""
    client = await reply_to(
        api, model="gpt-5.1-codex", max_output_tokens=1, metadata={"a": "b"}, tools=[{"type": "mcp"}]
    )
    await api.gateway.ledger.drained()
    response = json.loads(client.bodies[0])
    assert (client.status, response["status"], response["model"]) == (200, "completed", "forte")
    assert (response["metadata"], response["max_output_tokens"]) == ({"a": "b"}, 1)
    assert client.headers[b"x-cadenza-ignored"] == b"tools.mcp"
    assert response["id"].removeprefix("resp_") in api.observer.written.getvalue()
    assert '"endpoint":"responses","status":200' in api.observer.written.getvalue()
    assert (await api.funded.funds())[0] == FUNDED_NANO - FORTE.quote(9, 1), "one token was allowed"


async def test_a_heavy_body_is_translated_in_a_child(funded: FundedStore) -> None:
    """Many items, or a very long one: the same conversation, and what is wrong with it is a 400 too."""
    upstream, route = ScriptedUpstream(Piece("yes", "stop", USED)), msgspec.structs.replace(ROUTE, context_tokens=10**6)
    presence = Presence(funded.store)
    gateway = make_gateway(
        funded.store, funded.observer, snapshot_of({PROVIDER: upstream}, route=route), None, presence
    )
    gateway.large_bodies.parse_with(CHILD)
    items = [{"role": "user", "content": f"word {number}"} for number in range(2500)]
    async with running(gateway, presence):
        api = Api(funded, gateway)
        for sent in (items, [{"role": "user", "content": "a" * LARGE_BYTES}]):
            client = await reply_to(api, input=sent, metadata={"a": "b"})
            assert (client.status, json.loads(client.bodies[0])["metadata"]) == (200, {"a": "b"})
            assert [msgspec.json.decode(one) for one in upstream.asks[-1].messages][1:] == sent
        client = await reply_to(api, input=[*items, {"role": "tool"}])
    assert (client.status, b"input[2500]" in client.bodies[0]) == (400, True)


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"input": 1}, 400, "input: "),
        ({"max_output_tokens": 200_000}, 400, "max_output_tokens: at most"),
        ({"model": "gemini-3"}, 400, "This model does not exist. Use one of: auto, forte."),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]}, 400, "input: the"),
        ({"previous_response_id": "resp_1"}, 400, "previous_response_id: Nothing is stored here"),
    ],
)
async def test_an_error_has_the_shape_of_every_other(api: Api, fields: Any, status: int, words: str) -> None:
    """The two keys, in the words of this API; nothing is streamed before it."""
    for stream in (True, False):
        client = await reply_to(api, **fields, stream=stream)
        error = json.loads(client.bodies[0])["error"]
        assert (client.status, error["type"], sorted(error)) == (status, "invalid_request_error", ["message", "type"])
        assert error["message"].startswith(words)


async def test_a_compressed_body_is_refused(api: Api) -> None:
    """As for a chat, before it is read."""
    client = Client()
    client.open([*api.funded.key_headers, (b"content-encoding", b"gzip")], path="/v1/responses", body=b"{}")
    await client.serve(api.gateway)
    assert client.status == 415


async def test_credit_is_held_for_every_byte_that_is_sent(funded: FundedStore) -> None:
    """The size of the translated body bounds the tokens of the prompt."""
    upstream = ScriptedUpstream(Piece("yes", "stop", USED))
    async with running_api(funded, upstream) as api:
        await reply_to(api, input="word " * 100, instructions="Be brief. " * 10)
    assert 600 < upstream.asks[-1].prompt_tokens < 800


@pytest.mark.parametrize("path", ["/v1/responses/resp_1", "/v1/responses/resp_1/cancel"])
async def test_stored_responses_do_not_exist(api: Api, path: str) -> None:
    """The 404 says that nothing is stored."""
    client = Client()
    api.get(client, path)
    await client.serve(api.gateway)
    assert (client.status, b"not stored" in client.bodies[0]) == (404, True)


async def test_a_fault_in_a_stream_is_response_failed(funded: FundedStore) -> None:
    """After an `error` that SDKs raise, with what was said until then; the connection closes without [DONE]."""
    async with running_api(funded, ScriptedUpstream(Piece("half"), Fault(FaultKind.TRUNCATED))) as api:
        client = await reply_to(api, stream=True)
    *_, error, failed = events_of(client)
    assert (error["type"], failed["type"]) == ("error", "response.failed")
    published = {"code": "server_error", "message": BROKE_OFF, "param": None}
    assert {name: error[name] for name in published} == published
    assert error["error"] == {"type": "api_error", **published}
    response = failed["response"]
    assert (response["status"], response["error"]) == ("failed", {"code": "server_error", "message": BROKE_OFF})
    assert response["output"][0]["content"][0]["text"] == "half"
    assert client.exchange.keep_alive is False


async def test_an_error_after_a_ping_is_a_stream_that_failed(funded: FundedStore) -> None:
    """The head was sent, so the error is an event, behind the one that the SDK wants to see first."""
    upstream = ScriptedUpstream(opening=asyncio.Event())
    async with running_api(funded, upstream) as api:
        api.gateway.in_flight.pings.every_s = 0.01
        client = Client()
        ask(api, client, stream=True, metadata={"a": "b"})
        serving = asyncio.create_task(client.serve(api.gateway))
        await client.until_sent(PING)
        client.exchange.interrupt(Interruption.SHUTDOWN)
        await serving
    events = events_of(client)
    assert [one["type"] for one in events] == FAILED_EARLY
    response = events[-1]["response"]
    assert (response["model"], response["metadata"], response["error"]["code"]) == (
        "auto",
        {"a": "b"},
        "rate_limit_exceeded",
    )


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_prompt_that_is_too_long(funded: FundedStore, *, is_stream: bool) -> None:
    """400 for free; in a stream it is events, as OpenAI sends them: Codex shortens the conversation only then."""
    too_long = Fault(FaultKind.INVALID, 400, overflow=Overflow(8192, 20056))
    async with running_api(funded, ScriptedUpstream(opening=too_long)) as api:
        client = await reply_to(api, stream=is_stream)
    if is_stream:
        events = events_of(client)
        assert [one["type"] for one in events] == FAILED_EARLY
        error = events[-1]["response"]["error"]
        assert (client.status, error["code"]) == (200, "context_length_exceeded")
    else:
        error = msgspec.json.decode(client.bodies[0])["error"]
        assert client.status == 400
    assert error["message"].startswith("context_length_exceeded: This model's maximum context length is 8192 tokens.")
    assert (await funded.funds())[0] == FUNDED_NANO
    assert [outcome.status for outcome in funded.observer.outcomes] == [400]
