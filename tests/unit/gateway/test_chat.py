"""Reading a chat request and fitting it to routes: a large prompt is counted, a small one need not be."""

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from cadenza.children.turns import TurnLimits
from cadenza.core.chat import ChatRequest
from cadenza.core.errors import InsufficientCredit, InvalidRequest, RateLimited
from cadenza.core.money import Price
from cadenza.core.records import CONTEXT_TOKENS_MAX, Plan, Principal, Route
from cadenza.gateway.chat import INLINE_BYTES, fit, read_chat
from cadenza.gateway.large.bodies import LargeBodies, LargeLimits
from cadenza.http.body import BodyMemory
from cadenza.observe import Observer, make_log
from cadenza.routing.prompt import Character, PromptSize
from tests.unit.gateway.client import Client
from tests.unit.gateway.prompts import TOKENIZER, prompt_of

SMALL, LARGE = Route("acme", "small", 2_000, 500), Route("acme", "large", 2_000_000, 1_000, 1)
PLAN = Plan.of("forte", (SMALL, LARGE))
PRICE, CREDIT_NANO = Price(1070, 3450), 10**12


def principal(key: str, account: str = "account") -> Principal:
    return Principal(key, account, frozenset(), "forte")


@pytest.fixture
async def large_bodies() -> AsyncIterator[LargeBodies]:
    large_bodies = LargeBodies(Observer(make_log(io.StringIO())))
    yield large_bodies
    await large_bodies.stop()


Read = Callable[..., Awaitable[tuple[PromptSize, ChatRequest]]]


@pytest.fixture
def read(large_bodies: LargeBodies) -> Read:
    """Reads a request of one message with this text."""

    async def read(text: str, character: str = "") -> tuple[PromptSize, ChatRequest]:
        body = b'{"messages":[{"role":"user","content":"%b"}]}' % text.encode()
        exchange = Client().open(body=body)
        chat = await read_chat(exchange, BodyMemory(), large_bodies, principal("key"))
        return PromptSize(TOKENIZER, Character(character), chat.counted_texts, exchange.body.size_bytes), chat

    return read


async def test_a_long_body_with_few_tokens_is_accepted(read: Read) -> None:
    """A body may have more bytes than the context has tokens, as long as they make fewer tokens."""
    prompt, chat = await read("a" * (CONTEXT_TOKENS_MAX + 100_000))
    assert (await fit(PLAN, PRICE, prompt, chat, CREDIT_NANO)).routes == (LARGE,)


async def test_a_body_with_too_many_tokens_is_refused(read: Read) -> None:
    """A prompt larger than the context is a 400 with the count of the client's own tokens, without the character's."""
    prompt, chat = await read("é" * CONTEXT_TOKENS_MAX, "You are the character.")
    with pytest.raises(InvalidRequest, match="resulted in 1000004 tokens"):
        await fit(PLAN, PRICE, prompt, chat, CREDIT_NANO)


@pytest.mark.parametrize(("tokens", "routes"), [(1_984, (SMALL, LARGE)), (1_985, (LARGE,))])
async def test_a_prompt_is_fitted_by_its_count(read: Read, tokens: int, routes: tuple[Route, ...]) -> None:
    """A prompt with more bytes than a window has tokens is counted, and goes to the route if its tokens fit."""
    _, chat = await read("hi")
    prompt = prompt_of(tokens, 50_000)
    assert await fit(PLAN, PRICE, prompt, chat, CREDIT_NANO) == Plan.of("forte", routes)
    assert prompt.is_exact


async def test_a_long_prompt_is_not_counted_without_credit(read: Read) -> None:
    """If only a count could tell whether a long prompt fits, the account's credit is looked at first."""
    prompt, chat = await read("a " * CONTEXT_TOKENS_MAX)
    with pytest.raises(InsufficientCredit):
        await fit(PLAN, PRICE, prompt, chat, 0)
    assert not prompt.is_exact


async def test_a_prompt_that_no_window_can_take_is_refused_without_a_count(read: Read) -> None:
    """A token has at most 128 bytes, so the characters alone tell that a very long prompt fits no window."""
    prompt, chat = await read("a" * 257_000)
    plan = Plan.of("forte", (SMALL,))
    with pytest.raises(InvalidRequest, match=r"length is 2000 tokens.* resulted in 2008 tokens"):
        await fit(plan, PRICE, prompt, chat, 0)
    assert not prompt.is_exact


async def test_an_account_with_many_keys_gets_the_turns_of_one() -> None:
    """Large bodies of all its keys wait in one line, which is bounded and delays no other account."""
    large_bodies = LargeBodies(
        Observer(make_log(io.StringIO())), LargeLimits(turns=TurnLimits(waiting_per_owner_max=2, wait_s=200))
    )
    body = b'{"messages":[{"role":"user","content":"%b"}]}' % (b"a" * INLINE_BYTES)
    served = list[str]()

    async def send(sender: Principal) -> None:
        await read_chat(Client().open(body=body), BodyMemory(), large_bodies, sender)
        served.append(sender.key_id)

    senders = [*(principal(f"key {number}") for number in range(4)), principal("other", "other account")]
    ended = await asyncio.gather(*map(send, senders), return_exceptions=True)
    await large_bodies.stop()
    assert [type(end) for end in ended] == [type(None)] * 3 + [RateLimited, type(None)]
    assert served.index("other") <= 2  # one that ran, and one that was before it in the line
    assert [key for key in served if key != "other"] == ["key 0", "key 1", "key 2"]
