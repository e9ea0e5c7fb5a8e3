"""The ask that goes upstream: the character layer first, the client's messages after it, unchanged."""

import json

import pytest

from cadenza.core.records import Plan, Route
from cadenza.gateway.compose import compose
from cadenza.gateway.validate import parse_chat
from cadenza.routing.prompt import Character
from cadenza.upstreams.base import Ask
from tests.unit.gateway.prompts import prompt_of

CHARACTER = Character('You are "Cadenza".\nBe brief. 音楽')
PLAN = Plan.of("forte", (Route("acme", "large", 10_000, 1_000),))
HI = b'{"messages":[{"role":"user",  "content":"hi"}],"stream":true,"seed":7%b}'


def composed(body: bytes, output_limit: int = 1_000) -> Ask:
    return compose(parse_chat(body), CHARACTER, prompt_of(20, 100), output_limit, PLAN)


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_the_character_is_always_the_first_message(role: str) -> None:
    """Whatever role the client begins with, the character is a message of its own before it."""
    body = {"messages": [{"role": role, "content": "mine"}, {"role": "user", "content": "hi"}]}
    first, *rest = [json.loads(bytes(message)) for message in composed(json.dumps(body).encode()).messages]
    assert first == {"role": "system", "content": CHARACTER.text}
    assert [message["content"] for message in rest] == ["mine", "hi"]


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


def test_composing_does_not_change_the_request() -> None:
    """A request that is composed twice gets one character each time."""
    chat = parse_chat(HI % b"")
    assert [len(compose(chat, CHARACTER, prompt_of(20), 9, PLAN).messages) for _ in range(2)] == [2, 2]
    assert len(chat.messages) == 1
