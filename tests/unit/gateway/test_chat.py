"""Reading a chat request and fitting it to routes: a large prompt is counted, a small one need not be."""

import pytest

from cadenza.core.errors import InvalidRequest
from cadenza.core.records import CONTEXT_TOKENS_MAX, Plan, Route
from cadenza.gateway.chat import fit, read_chat
from cadenza.gateway.validate import ChatRequest
from cadenza.http.body import BodyMemory
from cadenza.routing.prompt import Character, PromptSize
from tests.unit.gateway.client import Client
from tests.unit.gateway.prompts import TOKENIZER, prompt_of

SMALL, LARGE = Route("acme", "small", 2_000, 500), Route("acme", "large", 2_000_000, 1_000, 1)
PLAN = Plan.of("forte", (SMALL, LARGE))


async def read(text: str, character: str = "") -> tuple[PromptSize, ChatRequest]:
    """Read a request of one message with this text."""
    body = b'{"messages":[{"role":"user","content":"%b"}]}' % text.encode()
    exchange = Client().open(body=body)
    chat = await read_chat(exchange, BodyMemory())
    assert chat.texts == [text]
    return PromptSize(TOKENIZER, Character(character), chat.texts, exchange.body.size_bytes), chat


async def test_a_long_body_with_few_tokens_is_accepted() -> None:
    """A body may have more bytes than the context has tokens, as long as they make fewer tokens."""
    prompt, chat = await read("a" * (CONTEXT_TOKENS_MAX + 100_000))
    assert (await fit(PLAN, prompt, chat)).routes == (LARGE,)


async def test_a_body_with_too_many_tokens_is_refused() -> None:
    """A prompt larger than the context is a 400 with the count of the client's own tokens, without the character's."""
    prompt, chat = await read("é" * CONTEXT_TOKENS_MAX, "You are the character.")
    with pytest.raises(InvalidRequest, match="resulted in 1000004 tokens"):
        await fit(PLAN, prompt, chat)


@pytest.mark.parametrize(("tokens", "routes"), [(1_984, (SMALL, LARGE)), (1_985, (LARGE,))])
async def test_a_prompt_is_fitted_by_its_count(tokens: int, routes: tuple[Route, ...]) -> None:
    """A prompt with more bytes than a window has tokens is counted, and goes to the route if its tokens fit."""
    _, chat = await read("hi")
    prompt = prompt_of(tokens, 50_000)
    assert await fit(PLAN, prompt, chat) == Plan.of("forte", routes)
    assert prompt.is_exact
