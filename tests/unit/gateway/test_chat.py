"""Reading a chat request and fitting it to routes: a large prompt is counted, a small one need not be."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec
import pytest

from cadenza.children.turns import TurnLimits
from cadenza.core.chat import ChatRequest, LargeTexts
from cadenza.core.errors import InsufficientCredit, InvalidRequest, RateLimited
from cadenza.core.money import Price
from cadenza.core.price_schedules import PriceSchedule
from cadenza.core.records import CONTEXT_TOKENS_MAX, Plan, Principal, Route
from cadenza.gateway.chat import LARGE_BYTES, STEPS_MAX, compose, fit, read_chat
from cadenza.gateway.large.bodies import LargeBodies, LargeLimits
from cadenza.gateway.large.weight import COMMAS_MAX, ESCAPES_MAX, LIGHT_BYTES
from cadenza.gateway.request import RequestRecord
from cadenza.gateway.validate import parse_chat
from cadenza.http.body import BodyMemory
from cadenza.observe import Observer, make_log
from cadenza.routing.prompt import Character, PromptSize
from cadenza.upstreams.dialects import PLAIN
from cadenza.upstreams.writer import RequestWriter
from tests.unit.gateway.client import Client
from tests.unit.gateway.prompts import TOKENIZER, Paid, ask_of, prompt_of

SMALL, LARGE = Route("acme", "small", 2_000, 500), Route("acme", "large", CONTEXT_TOKENS_MAX, 1_000, 1)
PLAN = Plan.of("forte", (SMALL, LARGE))
PRICES, CREDIT_NANO = PriceSchedule(Price(1070, 3450)), 10**12

CHARACTER = Character('You are "Cadenza".\nBe brief. 音楽')
ONE_ROUTE = Plan.of("forte", (Route("acme", "large", 10_000, 1_000),))
HI = b'{"messages":[{"role":"user",  "content":"hi"}],"stream":true,"seed":7%b}'


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
        chat = await read_chat(exchange, BodyMemory(), large_bodies, principal("key"), RequestRecord(exchange))
        return PromptSize(TOKENIZER, Character(character), chat.counted_texts, exchange.body.size_bytes), chat

    return read


async def test_a_long_body_with_few_tokens_is_accepted(read: Read) -> None:
    """A body may have more bytes than the context has tokens, as long as they make fewer tokens."""
    prompt, chat = await read("a" * (CONTEXT_TOKENS_MAX + 100_000))
    assert (await fit(PLAN, PRICES, prompt, chat, CREDIT_NANO)).routes == (LARGE,)


async def test_a_body_with_too_many_tokens_is_refused(read: Read) -> None:
    """A prompt larger than the context is a 400 with the count."""
    prompt, chat = await read("é" * CONTEXT_TOKENS_MAX)
    with pytest.raises(InvalidRequest, match="resulted in 1000008 tokens"):
        await fit(PLAN, PRICES, prompt, chat, CREDIT_NANO)


@pytest.mark.parametrize(("tokens", "routes"), [(1_984, (SMALL, LARGE)), (1_985, (LARGE,))])
async def test_a_prompt_is_fitted_by_its_count(read: Read, tokens: int, routes: tuple[Route, ...]) -> None:
    """A prompt with more bytes than a window has tokens is counted, and goes to the route if its tokens fit."""
    _, chat = await read("hi")
    prompt = prompt_of(tokens, 50_000)
    assert await fit(PLAN, PRICES, prompt, chat, CREDIT_NANO) == Plan.of("forte", routes)
    assert prompt.exact


async def test_a_long_prompt_is_not_counted_without_credit(read: Read) -> None:
    """If only a count could tell whether a long prompt fits, the account's credit is looked at first."""
    prompt, chat = await read("a " * CONTEXT_TOKENS_MAX)
    with pytest.raises(InsufficientCredit):
        await fit(PLAN, PRICES, prompt, chat, 0)
    assert not prompt.exact


async def test_a_prompt_that_no_window_can_take_is_refused_without_a_count(read: Read) -> None:
    """A token has at most 128 bytes, so the characters alone tell that a very long prompt fits no window."""
    prompt, chat = await read("a" * 257_000)
    plan = Plan.of("forte", (SMALL,))
    with pytest.raises(InvalidRequest, match=r"length is 2000 tokens.* resulted in 2008 tokens"):
        await fit(plan, PRICES, prompt, chat, 0)
    assert not prompt.exact


CALLED = b',{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"look"}}]}'
IMAGE = b',{"type":"image_url","image_url":{"url":"data:image/png;base64,aGVsbG8="}}'
IMAGES = b',{"role":"user","content":[{"type":"text","text":"hi"}%b]}'
VALUES = b',{"role":"user","content":"hi","x":[0%b]}'
ANSWERED = b',{"role":"tool","tool_call_id":"a","content":"%b"}'


@pytest.mark.parametrize(
    ("messages", "is_apart"),
    [
        ((CALLED + ANSWERED % (b"word, " * 300)) * 260, False),  # a long turn of an agent: 500 kB
        ((CALLED + ANSWERED % b"") * STEPS_MAX, True),
        (ANSWERED % (b"word " * (LARGE_BYTES // 5)), True),
        (CALLED + ANSWERED % (b"," * (LARGE_BYTES // 2)), False),
        (VALUES % (b",0" * COMMAS_MAX), False),  # 33 kB
        (VALUES % (b",0" * LIGHT_BYTES), True),
        (VALUES % (b',""' * LIGHT_BYTES), True),
        (VALUES % (b',"\\\\"' * LIGHT_BYTES), True),
        (CALLED + ANSWERED % (b"\\ud83d\\ude00" * (LIGHT_BYTES // 13)), False),
        (CALLED + ANSWERED % (b"\\ud83d\\ude00" * (ESCAPES_MAX // 2 + 1)), True),
        (IMAGES % (IMAGE * 10), False),
        (IMAGES % (IMAGE * (STEPS_MAX // 40)), True),
    ],
    ids=[
        "agent",
        "steps",
        "large",
        "commas",
        "few values",
        "values",
        "strings",
        "escapes",
        "few pairs",
        "pairs",
        "few images",
        "images",
    ],
)
async def test_what_holds_up_nobody_is_parsed_at_once(
    large_bodies: LargeBodies, messages: bytes, is_apart: bool
) -> None:
    """A body of much text is parsed on the event loop; one with very many values, messages or bytes is not."""
    body = b'{"messages":[{"role":"user","content":"hi"}%b]}' % messages
    exchange = Client().open(body=body)
    try:
        chat = await read_chat(exchange, BodyMemory(), large_bodies, principal("key"), RequestRecord(exchange))
    except InvalidRequest:  # 4,096 messages and calls are the most
        assert is_apart
    else:
        assert (type(chat.texts) is LargeTexts) is is_apart


async def test_an_account_with_many_keys_gets_the_turns_of_one() -> None:
    """Large bodies of all its keys wait in one line, which is bounded and delays no other account."""
    large_bodies = LargeBodies(
        Observer(make_log(io.StringIO())), limits=LargeLimits(turns=TurnLimits(waiting_per_owner_max=2, wait_s=200))
    )
    body = b'{"messages":[{"role":"user","content":"%b"}]}' % (b"a" * LARGE_BYTES)
    served = list[str]()

    async def send(sender: Principal) -> None:
        exchange = Client().open(body=body)
        await read_chat(exchange, BodyMemory(), large_bodies, sender, RequestRecord(exchange))
        served.append(sender.key_id)

    senders = [*(principal(f"key {number}") for number in range(4)), principal("other", "other account")]
    ended = await asyncio.gather(*map(send, senders), return_exceptions=True)
    await large_bodies.stop()
    assert [type(end) for end in ended] == [type(None)] * 3 + [RateLimited, type(None)]
    assert served.index("other") <= 2  # one that ran, and one that was before it in the line
    assert [key for key in served if key != "other"] == ["key 0", "key 1", "key 2"]


def sent(messages: Sequence[msgspec.Raw]) -> list[tuple[str, str]]:
    decoded = [json.loads(bytes(message)) for message in messages]
    return [(message["role"], message["content"]) for message in decoded]


def test_the_names_of_passed_fields_are_counted() -> None:
    """A route that passes many fields on is sent all of them: what is allowed to be sent includes their names."""
    names = tuple(f"{number:064}" for number in range(60))
    plan = Plan.of("forte", (msgspec.structs.replace(ONE_ROUTE.routes[0], passes=names),))
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]} | dict.fromkeys(names, 1)).encode()
    ask = asyncio.run(ask_of(parse_chat(body), CHARACTER, prompt_of(20, 100), Paid(1_000), plan))
    written = RequestWriter(PLAIN).write(plan.routes[0], ask)
    ask.check_counted(len(written))
    assert msgspec.json.decode(written).keys() >= {*names}


@pytest.mark.parametrize("output_limit", [100, 1_000])
@pytest.mark.parametrize(("sent", "is_fitted"), [(b"", True), (b',"max_tokens":900', False)])
def test_a_limit_is_fitted_where_the_client_set_none(sent: bytes, is_fitted: bool, output_limit: int) -> None:
    """A client's own limit is its own, also if its account can pay for less."""
    ask = compose(parse_chat(HI % sent), CHARACTER, prompt_of(20), Paid(output_limit), ONE_ROUTE)
    assert ask.is_fitted is is_fitted


def test_the_ask_of_a_large_body_is_large() -> None:
    """It is written in slices; its texts are in another process, and none are dropped here."""

    async def count(character: str, *, is_urgent: bool) -> int:
        raise NotImplementedError(character, is_urgent)

    small = parse_chat(HI % b"")
    large = msgspec.structs.replace(small, texts=LargeTexts(2, count))
    asks = [compose(chat, CHARACTER, prompt_of(20), Paid(1_000), ONE_ROUTE) for chat in (large, small)]
    assert [ask.is_large for ask in asks] == [True, False]
