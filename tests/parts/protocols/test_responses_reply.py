"""POST /v1/responses in one process: the events of a stream, the whole response, errors, large bodies and charges."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from cadenza.core.faults import FaultKind
from cadenza.core.records import Usage
from cadenza.core.tool_calls import ToolCallPart
from cadenza.fleet.presence import Presence
from cadenza.gateway.answers import Answers
from cadenza.gateway.chat import LARGE_BYTES
from cadenza.gateway.relay import BROKE_OFF, ReplyHead
from cadenza.http.events import PING
from cadenza.http.exchange import Exchange, Interruption
from cadenza.parts.protocols.responses_reply import StreamedResponse
from cadenza.parts.protocols.responses_request import unwrap_reasoning
from cadenza.parts.protocols.run import CHILD
from cadenza.parts.protocols.translation import Kept
from cadenza.upstreams.base import Fault, Overflow, Piece
from tests.parts.protocols.generated.checks import assemble_items, check_items
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

USED = Usage(9, 5, 2, completion_details={"reasoning_tokens": 3})
CALLING = ReplyHead("chatcmpl-one", 1_800_000_000, "forte", PRICE, has_tools=True)
KEPT = Kept(names={"files__look": ("files", "look")}, is_encrypted=True)
FAILED_EARLY = ["response.created", "response.in_progress", "error", "response.failed"]


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


async def events_of_reply(*steps: Piece) -> list[Any]:
    client = Client()
    relay = StreamedResponse(client.open(), Answers(client.exchange, "r1"), CALLING, new_meter(), KEPT)
    relay.finish(await relay.run(ScriptedReply(*steps)))
    return events_of(client)


async def test_every_event_of_a_reply() -> None:
    """The sequence that the SDK of OpenAI expects, with the namespace of a call and the counts of tokens."""
    call, custom = ToolCallPart(0, "up", "files__look", "{}"), ToolCallPart(1, "up1", "patch", "***", "custom")
    said = [Piece(extras={"reasoning_content": "hm"}), Piece("a"), Piece("b"), Piece(calls=(call, custom))]
    events = await events_of_reply(*said, Piece(finish_reason="tool_calls", usage=USED))
    assert [one["type"].removeprefix("response.") for one in events] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_item.added", "function_call_arguments.delta"),
        *("output_item.added", "custom_tool_call_input.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("function_call_arguments.done", "output_item.done"),
        *("custom_tool_call_input.done", "output_item.done", "completed"),
    ]
    check_items(assemble_items(events[:-1]), {0, 1, 2, 3}, events[-1]["response"])
    response = events[-1]["response"]
    reasoning, message, made, patch = response["output"]
    assert unwrap_reasoning(reasoning["encrypted_content"]) == {"reasoning_content": "hm"}
    assert message["content"] == [{"type": "output_text", "text": "ab", "annotations": [], "logprobs": []}]
    assert (made["namespace"], made["name"], made["arguments"]) == ("files", "look", "{}")
    assert made["call_id"].startswith("call_")
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "patch", "***")
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
    events = await events_of_reply(Piece("a"), call, Piece(finish_reason=finish, usage=USED))
    response = events[-1]["response"]
    assert (events[-1]["type"], response["incomplete_details"]) == ("response.incomplete", {"reason": reason})
    assert [one["item"]["type"] for one in events if one["type"] == "response.output_item.done"] == ["message"]
    assert [item["status"] for item in response["output"]] == ["incomplete", "incomplete"]


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
