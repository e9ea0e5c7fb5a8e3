"""Reading a chat request: long bodies are counted, short ones need not be."""

import json

import pytest

from cadenza.core.errors import InvalidRequest
from cadenza.core.records import CONTEXT_TOKENS_MAX
from cadenza.gateway.call import Uploads
from cadenza.gateway.chat import read_chat
from tests.unit.gateway.asgi import Client


def client_that_says(text: str) -> Client:
    client = Client()
    body = {"messages": [{"role": "user", "content": text}]}
    client.say(json.dumps(body, ensure_ascii=False).encode())
    return client


async def test_a_long_body_of_few_tokens_is_taken() -> None:
    """More bytes than the context has tokens are fine where they make fewer tokens."""
    text = "a" * (CONTEXT_TOKENS_MAX + 100_000)
    assert (await read_chat(client_that_says(text).call(), Uploads()))[0].texts == [text]


async def test_a_body_of_too_many_tokens_is_refused() -> None:
    """A prompt past the context is a 400 that says how many tokens were counted."""
    text = "é" * CONTEXT_TOKENS_MAX
    with pytest.raises(InvalidRequest, match="1,000,004 tokens"):
        await read_chat(client_that_says(text).call(), Uploads())
