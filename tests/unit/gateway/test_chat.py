"""Reading a chat request, and finding room for it: what is large is counted, what is short need not be."""

import json

import pytest

from cadenza.core.errors import InvalidRequest
from cadenza.core.records import CONTEXT_TOKENS_MAX, Plan, Route
from cadenza.gateway.chat import fit, read_chat
from cadenza.gateway.compose import Character, Prompt
from cadenza.http.exchange import Uploads
from tests.unit.gateway.clients import Client
from tests.unit.gateway.prompts import prompt_of

SMALL, LARGE = Route("acme", "small", 2_000, 500), Route("acme", "large", 2_000_000, 1_000, 1)
PLAN = Plan.of("forte", (SMALL, LARGE))


def client_that_says(text: str) -> Client:
    client = Client()
    body = {"messages": [{"role": "user", "content": text}]}
    client.say(json.dumps(body, ensure_ascii=False).encode())
    return client


async def prompt_that_says(text: str, layer: str = "") -> Prompt:
    exchange = client_that_says(text).exchange()
    request = await read_chat(exchange, Uploads())
    assert request.texts == [text]
    return Prompt(Character(layer), request.texts, exchange.body_bytes)


async def test_a_long_body_of_few_tokens_is_taken() -> None:
    """More bytes than the context has tokens are fine where they make fewer tokens."""
    prompt = await prompt_that_says("a" * (CONTEXT_TOKENS_MAX + 100_000))
    assert (await fit(PLAN, prompt)).routes == (LARGE,)


async def test_a_body_of_too_many_tokens_is_refused() -> None:
    """A prompt past the context is a 400 that says how many tokens were counted, whatever the layer has."""
    prompt = await prompt_that_says("é" * CONTEXT_TOKENS_MAX, "You are the layer.")
    with pytest.raises(InvalidRequest, match="1,000,004 tokens"):
        await fit(PLAN, prompt)


@pytest.mark.parametrize(("tokens", "routes"), [(1_984, (SMALL, LARGE)), (1_985, (LARGE,))])
async def test_the_routes_that_hold_a_prompt_are_found_by_its_count(tokens: int, routes: tuple[Route, ...]) -> None:
    """A prompt of more bytes than a window has tokens is asked of it where its tokens fit."""
    prompt = prompt_of(tokens, 50_000)
    assert await fit(PLAN, prompt) == Plan.of("forte", routes)
    assert prompt.is_counted
