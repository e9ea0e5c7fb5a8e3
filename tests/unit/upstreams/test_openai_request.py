"""The request that the OpenAI upstream sends: its head, its body and the fields of each dialect."""

import asyncio
from typing import Any

import pytest
from msgspec import Raw

from cadenza.upstreams.base import Ask
from cadenza.upstreams.dialects import DIALECTS
from tests.loopback import LoopbackUpstream
from tests.unit.http.raw_client import WAIT_S
from tests.unit.upstreams.asks import MESSAGE, make_ask, read_pieces, running


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
