"""What the embedded model is asked beyond the request: defaults for sampling and for the length of the answer.

The model's server is a scripted one on the loopback, which records the requests.
"""

from typing import Any

import msgspec
import pytest

from cadenza.core.records import Route
from cadenza.parts.embedded.upstream import LoadedModel, ask_model
from cadenza.upstreams.base import Ask, Collector
from cadenza.upstreams.openai import OpenAIUpstream
from tests.loopback import Good, LoopbackUpstream

ROUTE = Route("local", "small", 8_192, 8_192)
DEFAULTS = {"temperature": 0.2, "top_p": 0.9}
USER = msgspec.Raw(b'{"role": "user", "content": "What is the weather in Oslo?"}')
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
TOOLS = {"tools": msgspec.Raw(msgspec.json.encode([WEATHER])), "tool_choice": msgspec.Raw(b'"required"')}


async def sent(upstream: LoopbackUpstream, ask: Ask, *, knows_tools: bool = False) -> Any:
    """The last request that this ask leads to."""
    upstream.always(Good("{}"))
    endpoint = OpenAIUpstream(upstream.base_url)
    try:
        reply = await ask_model(LoadedModel(endpoint, knows_tools), ROUTE, ask)
        await reply.deliver(Collector())
        await reply.close()
    finally:
        await endpoint.stop()
    return upstream.requests[-1].json


async def test_defaults_fill_in_for_missing_fields(upstream: LoopbackUpstream) -> None:
    """A request without sampling fields and limit gets a low temperature and at most 256 tokens."""
    request = await sent(upstream, Ask([USER], {}, None, stream=True))
    assert {name: request[name] for name in DEFAULTS} == DEFAULTS
    assert request["max_tokens"] == 256


async def test_fields_of_the_request_win(upstream: LoopbackUpstream) -> None:
    """Each field that the client sets goes to the model unchanged; only the others get defaults."""
    sampling = {"temperature": msgspec.Raw(b"1.5"), "seed": msgspec.Raw(b"7")}
    request = await sent(upstream, Ask([USER], sampling, 3_000, stream=True))
    assert {name: request[name] for name in DEFAULTS} == DEFAULTS | {"temperature": 1.5}
    assert (request["seed"], request["max_tokens"]) == (7, 3_000)


async def test_a_non_streaming_request_is_streamed_from_the_model(upstream: LoopbackUpstream) -> None:
    """The model always streams, so that a slow machine meets the timeouts for one token and not for a whole reply."""
    request = await sent(upstream, Ask([USER], {}, None, stream=False))
    assert request["stream"] is True


@pytest.mark.parametrize("knows_tools", [False, True])
async def test_a_tool_call_may_be_longer_than_an_answer(upstream: LoopbackUpstream, knows_tools: bool) -> None:
    """Without a limit of the request a tool call has up to 1,024 tokens, because half a call is worth nothing."""
    request = await sent(upstream, Ask([USER], {}, None, stream=True, tools=TOOLS), knows_tools=knows_tools)
    assert request["max_tokens"] == 1_024
    assert request["temperature"] == DEFAULTS["temperature"]


async def test_an_answer_in_words_stays_short_when_tools_are_offered(upstream: LoopbackUpstream) -> None:
    """With tools that are not called the limit is that of an answer."""
    tools = TOOLS | {"tool_choice": msgspec.Raw(b'"none"')}
    assert (await sent(upstream, Ask([USER], {}, None, stream=True, tools=tools)))["max_tokens"] == 256


@pytest.mark.parametrize("knows_tools", [False, True])
@pytest.mark.parametrize(("tools", "paid", "limit"), [({}, 3_000, 256), ({}, 20, 20), (TOOLS, 3_000, 1_024)])
async def test_what_an_account_can_pay_for_makes_no_answer_longer(
    upstream: LoopbackUpstream, tools: dict[str, msgspec.Raw], paid: int, limit: int, knows_tools: bool
) -> None:
    """An account with little credit gets the usual length where its client set no limit, or less."""
    ask = Ask([USER], {}, paid, stream=True, tools=tools, is_fitted=True)
    assert (await sent(upstream, ask, knows_tools=knows_tools))["max_tokens"] == limit
