"""The prompt that goes upstream: the character layer first, the client's messages after it, unchanged; and its size."""

import asyncio
import json
import threading
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core import tokens
from cadenza.core.tokens import count_prompt, is_loaded, load
from cadenza.gateway.compose import INLINE_BYTES, Character, Prompt, compose
from cadenza.gateway.validate import parse_chat
from tests.unit.gateway.prompts import prompt_of

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


class Counting:
    """Counts as ever, and notes how often and in which thread."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def __call__(self, texts: Iterable[str]) -> int:
        self.threads.append(threading.get_ident())
        return count_prompt(texts)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    counting = Counting()
    monkeypatch.setattr("cadenza.gateway.compose.count_prompt", counting)
    return counting


async def test_a_prompt_is_as_large_as_its_bytes_until_it_is_counted(counting: Counting) -> None:
    """Nothing is counted before the count is asked for; from then on it is what the prompt has at most."""
    prompt = prompt_of(50, 400)
    assert (prompt.is_counted, prompt.most_tokens, prompt.size_bytes, counting.threads) == (False, 400, 400, [])
    assert await prompt.count() == 50
    assert (prompt.is_counted, prompt.most_tokens, prompt.size_bytes) == (True, 50, 400)


async def test_a_prompt_is_counted_once(counting: Counting) -> None:
    """However often the count is asked for, the client's texts and the layer are each counted once."""
    character = Character(TEXT)
    prompts = [Prompt(character, ["hello world"], 40) for _ in range(3)]
    for prompt in prompts:
        assert {await prompt.count() for _ in range(4)} == {count_prompt([TEXT, "hello world"])}
        assert await prompt.count_own() == count_prompt(["hello world"])
    assert len(counting.threads) == len(prompts) + 1


@pytest.mark.parametrize(("size_bytes", "is_inline"), [(INLINE_BYTES, True), (INLINE_BYTES + 1, False)])
async def test_a_large_prompt_is_counted_off_the_event_loop(
    counting: Counting, size_bytes: int, is_inline: bool
) -> None:
    """What takes longer than a moment keeps nobody waiting."""
    load()
    assert await prompt_of(50, size_bytes).count() == 50
    assert {thread == threading.get_ident() for thread in counting.threads} == {is_inline}


async def test_the_tokenizer_is_loaded_off_the_event_loop(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first count of a process, of however small a prompt, loads the tokenizer in another thread."""
    prompt = prompt_of(50)
    monkeypatch.setattr(tokens, "_o200k", None)
    assert await prompt.count() == 50
    assert is_loaded()
    assert threading.get_ident() not in counting.threads


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
roles = st.sampled_from(["system", "developer", "user", "assistant"])
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), min_size=1, max_size=4)
messages = st.fixed_dictionaries({"role": roles, "content": st.one_of(texts, parts)})
tools = st.fixed_dictionaries(
    {"type": st.just("function"), "function": st.fixed_dictionaries({"name": st.just("f"), "description": texts})}
)


@settings(max_examples=200, deadline=None)
@given(texts, st.lists(messages, min_size=1, max_size=5), st.lists(tools, max_size=1), st.booleans())
def test_no_prompt_has_more_tokens_than_bytes(layer: str, said: list[Any], offered: list[Any], is_ascii: bool) -> None:
    """Whatever is sent, the bytes of the layer and of the body are at least as many as what is counted of them."""
    body = json.dumps({"messages": said, "tools": offered}, separators=(",", ":"), ensure_ascii=is_ascii).encode()
    prompt = Prompt(Character(layer), parse_chat(body).texts, len(body))
    assert asyncio.run(prompt.count()) <= prompt.size_bytes
