"""The bound on the size of a prompt holds for everything that a client can send."""

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cadenza.gateway.validate import parse_chat
from cadenza.routing.prompt import Character, PromptSize
from tests.unit.gateway.prompts import TOKENIZER

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
roles = st.sampled_from(["system", "developer", "user", "assistant"])
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), min_size=1, max_size=4)
messages = st.fixed_dictionaries({"role": roles, "content": st.one_of(texts, parts)})
tools = st.fixed_dictionaries(
    {"type": st.just("function"), "function": st.fixed_dictionaries({"name": st.just("f"), "description": texts})}
)


@given(texts, st.lists(messages, min_size=1, max_size=5), st.lists(tools, max_size=1), st.booleans())
def test_no_prompt_has_more_tokens_than_bytes(
    character: str, sent: list[Any], offered: list[Any], is_ascii: bool
) -> None:
    """Whatever is sent, the bytes of character and body are at least as many as the counted tokens."""
    body = json.dumps({"messages": sent, "tools": offered}, separators=(",", ":"), ensure_ascii=is_ascii).encode()
    prompt = PromptSize(TOKENIZER, Character(character), parse_chat(body).counted_texts, len(body))
    assert asyncio.run(prompt.count()) <= prompt.bound
