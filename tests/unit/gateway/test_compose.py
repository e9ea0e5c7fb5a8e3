"""The prompt that goes upstream: the character layer first, the client's messages after it, unchanged."""

import json

import pytest

from cadenza.gateway.compose import Character, compose
from cadenza.gateway.validate import parse_chat

TEXT = 'You are "Cadenza".\nBe brief. 音楽'


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_the_layer_is_always_the_first_message_and_one_of_its_own(role: str) -> None:
    """Whatever the client begins with, the layer stands before it and nothing is merged into it."""
    body = {"messages": [{"role": role, "content": "mine"}, {"role": "user", "content": "hi"}]}
    ask = compose(parse_chat(json.dumps(body).encode()), Character(TEXT), 9)
    layer, *rest = [json.loads(bytes(message)) for message in ask.messages]
    assert layer == {"role": "system", "content": TEXT}
    assert [message["content"] for message in rest] == ["mine", "hi"]


def test_a_request_goes_on_with_all_that_it_asked_for() -> None:
    """Limit, stream and sampling are the request's own, and its messages are the very bytes that came."""
    request = parse_chat(b'{"messages":[{"role":"user",  "content":"hi"}],"max_tokens":5,"stream":true,"seed":7}')
    ask = compose(request, Character(TEXT), 9)
    assert (ask.max_tokens, ask.stream, bytes(ask.sampling["seed"])) == (5, True, b"7")
    assert bytes(ask.messages[1]) == b'{"role":"user",  "content":"hi"}'


def test_composing_leaves_the_request_as_it_was() -> None:
    """One request composed twice has one layer each time."""
    request = parse_chat(b'{"messages":[{"role":"user","content":"hi"}]}')
    assert [len(compose(request, Character(TEXT), 9).messages) for _ in range(2)] == [2, 2]
    assert len(request.messages) == 1
