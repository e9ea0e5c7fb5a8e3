"""The request that the OpenAI upstream sends: its head, its body and the fields of each dialect."""

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from cadenza.upstreams.base import Ask
from cadenza.upstreams.dialects import DIALECTS
from tests.loopback import LoopbackUpstream
from tests.unit.upstreams.asks import MESSAGE, STREAMING, WAIT_S, make_ask, read_pieces, running


async def send(upstream: LoopbackUpstream, ask: Ask, dialect: str = "plain") -> Any:
    """The body that the upstream received."""
    async with asyncio.timeout(WAIT_S), running(upstream.base_url, dialect=DIALECTS[dialect]) as openai:
        await read_pieces(openai, ask)
    return upstream.requests[0].json


async def test_the_body_has_what_was_asked_and_nothing_else(upstream: LoopbackUpstream) -> None:
    """The body has the route's model, the messages and the sampling fields, and no field of our own."""
    body = await send(upstream, make_ask(temperature=b"0.50", stop=b'["a","b"]'))
    message = {"role": "user", "content": "hé", "x_vendor": 1.5}
    assert body == {"model": "large-7", "messages": [message], "temperature": 0.5, "stop": ["a", "b"]}


async def test_raw_json_is_sent_byte_for_byte(upstream: LoopbackUpstream) -> None:
    """Messages and sampling fields are sent as the client wrote them, without decoding."""
    await send(upstream, make_ask(temperature=b"0.50", seed=b"12345678901234567890"))
    for written in (bytes(MESSAGE), b'"temperature":0.50', b'"seed":12345678901234567890'):
        assert written in upstream.requests[0].body


@pytest.mark.parametrize(
    ("key", "authorization"), [("sk-1", "Bearer sk-1"), (None, None), ("", None)], ids=["key", "none", "empty"]
)
async def test_the_head_of_a_request(upstream: LoopbackUpstream, key: str | None, authorization: str | None) -> None:
    """The request is a JSON POST to the endpoint's chat completions, with the provider's key if it has one."""
    async with asyncio.timeout(WAIT_S), running(upstream.base_url, key) as openai:
        await read_pieces(openai, make_ask())
    (request,) = upstream.requests
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["content-type"] == "application/json"
    assert request.headers.get("authorization") == authorization


@pytest.mark.parametrize(("asked", "sent"), [(None, None), (1, 1), (999, 999), (1000, 1000), (1001, 1000)])
@pytest.mark.parametrize(
    ("dialect", "field"), [("plain", "max_tokens"), ("openrouter", "max_tokens"), ("openai", "max_completion_tokens")]
)
async def test_the_output_limit(
    upstream: LoopbackUpstream, asked: int | None, sent: int | None, dialect: str, field: str
) -> None:
    """The limit is sent under the dialect's name for it, at most the route's limit; without one, none is sent."""
    body = await send(upstream, make_ask(asked), dialect)
    limits = {name: value for name, value in body.items() if name.startswith("max_")}
    assert limits == ({} if sent is None else {field: sent})


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stream_is_requested_with_its_usage(upstream: LoopbackUpstream, stream: bool) -> None:
    """A streaming request asks for the usage too; a non-streaming request has no stream fields."""
    body = await send(upstream, make_ask(stream=stream))
    fields = {name: value for name, value in body.items() if name.startswith("stream")}
    assert fields == ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        ("plain", {}),
        ("openai", {"store": False}),
        ("openrouter", {"provider": {"zdr": True, "data_collection": "deny"}}),
    ],
)
async def test_zero_retention_is_requested(upstream: LoopbackUpstream, dialect: str, fields: dict[str, Any]) -> None:
    """Every request sets the dialect's fields for zero retention, and no field of the client overrides them."""
    body = await send(upstream, make_ask(), dialect)
    assert body == {"model": "large-7", "messages": body["messages"], **fields}
    upstream.reset()
    overriding = Ask([MESSAGE], dict.fromkeys(fields, Raw(b"true")), None, stream=False)
    assert await send(upstream, overriding, dialect) == body


@pytest.mark.parametrize("dialect", ["plain", "vllm", "sglang", "llamacpp"])
async def test_a_request_to_continue_an_answer(upstream: LoopbackUpstream, dialect: str) -> None:
    """The begun answer is sent unchanged as the last message, with the fields that make the upstream continue it."""
    begun = 'She said: "né\u2028\\n'
    body = await send(upstream, Ask([MESSAGE], {"temperature": Raw(b"0.50")}, 40, stream=True, begun=begun), dialect)
    assert body["messages"] == [msgspec.json.decode(MESSAGE), {"role": "assistant", "content": begun}]
    assert body["continue_final_message"] is True
    assert body["add_generation_prompt"] is False
    assert body["temperature"] == 0.5


async def test_a_request_for_a_new_answer(upstream: LoopbackUpstream) -> None:
    """Without a begun answer, the body has no extra message and no field about continuing."""
    body = await send(upstream, STREAMING)
    assert len(body["messages"]) == 1
    assert not {"continue_final_message", "add_generation_prompt"} & body.keys()
