"""The ask that goes upstream: the character layer first, the client's messages after it, unchanged."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from cadenza.core.records import Plan, Route
from cadenza.gateway.compose import compose
from cadenza.gateway.validate import parse_chat
from cadenza.routing.prompt import Character
from cadenza.upstreams.base import Ask
from cadenza.upstreams.dialects import PLAIN
from cadenza.upstreams.message_rules import MessageRules
from cadenza.upstreams.writer import write_request
from tests.unit.gateway.prompts import Paid, prompt_of

CHARACTER = Character('You are "Cadenza".\nBe brief. 音楽')
PLAN = Plan.of("forte", (Route("acme", "large", 10_000, 1_000),))
HI = b'{"messages":[{"role":"user",  "content":"hi"}],"stream":true,"seed":7%b}'


def composed(body: bytes, output_limit: int = 1_000) -> Ask:
    return asyncio.run(compose(parse_chat(body), CHARACTER, prompt_of(20, 100), Paid(output_limit), PLAN))


def sent(messages: Sequence[msgspec.Raw]) -> list[tuple[str, str]]:
    decoded = [json.loads(bytes(message)) for message in messages]
    return [(message["role"], message["content"]) for message in decoded]


def composed_of(*messages: tuple[str, Any]) -> Ask:
    body = {"messages": [{"role": role, "content": content} for role, content in messages]}
    return composed(json.dumps(body).encode())


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_the_character_is_always_the_first_message(role: str) -> None:
    """If the client begins with another role, the character is a system message of its own before it."""
    ask = composed_of((role, "mine"), ("user", "hi"))
    assert sent(ask.messages) == [("system", CHARACTER.text), (role, "mine"), ("user", "hi")]
    assert ask.separate == ()


def test_leading_system_messages_are_joined_to_the_character() -> None:
    """The character, a blank line, then each leading system and developer message; later ones stay in place."""
    parts = [{"type": "text", "text": "two "}, {"type": "text", "text": "parts"}]
    ask = composed_of(("system", "one"), ("developer", parts), ("user", "hi"), ("developer", "later"))
    joined = f"{CHARACTER.text}\n\none\n\ntwo parts"
    assert sent(ask.messages) == [("system", joined), ("user", "hi"), ("system", "later")]


def test_a_route_can_have_each_system_message_apart() -> None:
    """With `system = "each"` the route gets the character and the client's messages as they came."""
    ask = composed_of(("system", "one"), ("developer", "two"), ("user", "hi"))
    one, each = PLAN.routes[0], msgspec.structs.replace(PLAN.routes[0], system="each")
    assert ask.messages_for(one) is ask.messages
    apart = [("system", CHARACTER.text), ("system", "one"), ("system", "two"), ("user", "hi")]
    assert sent(ask.messages_for(each)) == apart


def test_system_messages_alone_are_joined_too() -> None:
    """A conversation of system messages only becomes one message."""
    assert sent(composed_of(("system", "one")).messages) == [("system", f"{CHARACTER.text}\n\none")]


def test_an_ask_has_the_fields_of_the_request() -> None:
    """Stream and sampling are the request's own, its messages are the bytes that came, its size is the prompt's."""
    ask = composed(HI % b"")
    assert (ask.stream, bytes(ask.sampling["seed"]), ask.prompt_tokens) == (True, b"7", 100)
    assert bytes(ask.messages[1]) == b'{"role":"user",  "content":"hi"}'


@pytest.mark.parametrize(
    ("asked", "output_limit", "sent"),
    [(None, 1_000, None), (None, 999, 999), (5, 5, 5), (500, 107, 107), (5_000, 1_000, 1_000)],
)
def test_the_limit_is_the_clients_own_unless_the_credit_pays_for_less(
    asked: int | None, output_limit: int, sent: int | None
) -> None:
    """Without a limit none is sent while the account can pay for the longest answer of the route."""
    field = b"" if asked is None else b',"max_tokens":%d' % asked
    assert composed(HI % field, output_limit).max_tokens == sent


async def test_composing_does_not_change_the_request() -> None:
    """A request that is composed twice gets one character each time."""
    chat = parse_chat(HI % b"")
    asks = [await compose(chat, CHARACTER, prompt_of(20), Paid(9), PLAN) for _ in range(2)]
    assert [len(ask.messages) for ask in asks] == [2, 2]
    assert len(chat.messages) == 1


def test_the_names_of_passed_fields_are_counted() -> None:
    """A route that passes many fields on is sent all of them: what is allowed to be sent includes their names."""
    names = tuple(f"{number:064}" for number in range(60))
    plan = Plan.of("forte", (msgspec.structs.replace(PLAN.routes[0], passes=names),))
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]} | dict.fromkeys(names, 1)).encode()
    ask = asyncio.run(compose(parse_chat(body), CHARACTER, prompt_of(20, 100), Paid(1_000), plan))
    written = write_request(PLAIN, MessageRules(PLAIN), plan.routes[0], ask)
    ask.check_counted(len(written))
    assert msgspec.json.decode(written).keys() >= {*names}
