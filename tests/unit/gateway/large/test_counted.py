"""Long requests are counted in pieces on the event loop, and what was counted before is not counted again."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

from cadenza.core.tokens import PART_CHARS, Tokenizer, least_tokens
from cadenza.gateway.large.counted import CountedMessages
from cadenza.gateway.validate import parse_chat
from tests.unit.gateway.large.test_bodies import CALL, HI, TOOL, VALID

CHARACTER = "hello world"
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "Every word counts. " * 500},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "12 apples. " * 500},
]


class WatchedTokenizer(Tokenizer):
    """A tokenizer that keeps the texts that it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def count_parts(self, text: str) -> Iterator[int]:
        self.texts.append(text)
        return super().count_parts(text)


def called(read: Callable[..., Any], *args: object) -> Any:
    """What measures, without measuring."""
    return read(*args)


async def count(counted: CountedMessages, messages: list[dict[str, Any]], key_id: str = "key", **fields: Any) -> int:
    chat = parse_chat(json.dumps({"messages": messages, **fields}).encode())
    return await counted.texts_of(chat, key_id, called).count(CHARACTER, is_urgent=False)


async def test_the_count_is_that_of_all_texts() -> None:
    """The first time and again, the count is that of the character and of everything that is sent; no more is held."""
    tokenizer = Tokenizer()
    counted = CountedMessages(tokenizer)
    for fields in VALID.values():
        chat = parse_chat(json.dumps(fields).encode())
        texts = counted.texts_of(chat, "key", called)
        expected = tokenizer.count_prompt([CHARACTER, *chat.counted_texts()])
        assert [await texts.count(CHARACTER, is_urgent=False) for _ in range(2)] == [expected] * 2
        assert least_tokens(texts.chars) <= expected


async def test_the_next_turn_counts_only_what_is_new() -> None:
    """Of a conversation with the same tools and two more messages, the character and these two are counted."""
    tokenizer = WatchedTokenizer()
    counted = CountedMessages(tokenizer)
    await count(counted, CONVERSATION, tools=[TOOL])
    tokenizer.texts.clear()
    await count(counted, [*CONVERSATION, {"role": "assistant", "content": "Twelve."}, HI], tools=[TOOL])
    assert tokenizer.texts == [CHARACTER, "Twelve.", "hi"]


async def test_nobody_learns_what_another_key_has_sent() -> None:
    """A message that another key, or another process, has sent is counted again: the time of a count tells nothing."""
    tokenizer = WatchedTokenizer()
    counted = CountedMessages(tokenizer)
    texts = list[list[str]]()
    for counts, key in ((counted, "key"), (counted, "other key"), (CountedMessages(tokenizer), "key")):
        tokenizer.texts.clear()
        await count(counts, CONVERSATION, key)
        texts.append([*tokenizer.texts])
    assert len(texts[0]) == 1 + len(CONVERSATION)
    assert texts == [texts[0]] * 3


async def test_others_run_while_a_long_message_is_counted() -> None:
    """One long message, or many short ones, are counted in pieces of 16 K characters."""
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    tokenizer = Tokenizer()
    tokenizer.load()
    others = asyncio.create_task(take_turns())
    for messages in ([{"role": "user", "content": "word " * 40_000}], CONVERSATION[:1] * 20):
        turns, expected = 0, len(json.dumps(messages)) // PART_CHARS // 2
        await count(CountedMessages(tokenizer), messages)
        assert turns >= expected >= 5
    others.cancel()
