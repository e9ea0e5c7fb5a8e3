"""Counts the texts of long requests on the event loop, a part at a time, and remembers how many tokens they have.

An agent sends its whole conversation with each turn, so nearly all of it was counted before. What is remembered of a
message is a number and a digest. The digest is made with a secret that only this process has, and with the id of the
key: nobody can tell from it, or from the time that a count takes, what another key has sent.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from cadenza.core.bounded_cache import BoundedCache
from cadenza.core.chat import ChatRequest, LargeTexts
from cadenza.core.sent import texts_of_field, texts_of_message
from cadenza.core.tokens import MESSAGE_OVERHEAD_TOKENS, PART_CHARS, Tokenizer

COUNTS_MAX = 64 * 1024  # of messages: they take 12 MB
DIGEST_BYTES = 16

Measure = Callable[..., Any]  # calls a function with arguments, and notes the CPU time: `RequestRecord.measure`


class CountingPace:
    """Says when other requests have to run: before more than PART_CHARS characters are passed in one turn.

    `measure` notes the CPU time of the work.
    """

    def __init__(self, measure: Measure) -> None:
        self.measure = measure
        self._passed_chars = 0

    def ends_turn(self, chars: int) -> bool:
        """Whether the turn ends before these characters."""
        self._passed_chars += chars
        if self._passed_chars <= PART_CHARS:
            return False
        self._passed_chars = chars
        return True


class CountedMessages:
    """The tokens of the messages that were counted last."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._secret = secrets.token_bytes(hashlib.blake2b.MAX_KEY_SIZE)
        self._counts: BoundedCache[bytes, int] = BoundedCache(COUNTS_MAX)

    def texts_of(self, chat: ChatRequest, key_id: str, measure: Measure) -> LargeTexts:
        return LargeTexts(chat.least_chars, partial(self._count, chat, key_id, CountingPace(measure)))

    async def _count(
        self,
        chat: ChatRequest,
        key_id: str,
        pace: CountingPace,
        character: str,
        *,
        is_urgent: bool,  # noqa: ARG002 it never waits
    ) -> int:
        if not self._tokenizer.is_loaded:
            await asyncio.to_thread(self._tokenizer.load)
        keyed = hashlib.blake2b(key_id.encode(), digest_size=DIGEST_BYTES, key=self._secret)
        tokens = await self._count_texts([character], pace)
        for index, raw in enumerate(chat.messages):
            if pace.ends_turn(len(raw)):
                await asyncio.sleep(0)
            if excluded := chat.excluded.get(index):
                tokens += await self._count_texts(texts_of_message(raw, excluded), pace)
            else:
                tokens += await self._count_once(keyed.copy(), raw, texts_of_message, pace)
        for raw in chat.fields.values():
            if pace.ends_turn(len(raw)):
                await asyncio.sleep(0)
            tokens += await self._count_once(keyed.copy(), raw, texts_of_field, pace)
        return tokens

    async def _count_once(
        self,
        digest: "hashlib.blake2b",
        raw: msgspec.Raw,
        texts_of: Callable[[msgspec.Raw], list[str]],
        pace: CountingPace,
    ) -> int:
        digest.update(raw)
        key = digest.digest()
        tokens = self._counts.get(key)
        if tokens is None:
            tokens = await self._count_texts(pace.measure(texts_of, raw), pace)
        self._counts.put(key, tokens)
        return tokens

    async def _count_texts(self, texts: list[str], pace: CountingPace) -> int:
        tokens = len(texts) * MESSAGE_OVERHEAD_TOKENS
        for text in texts:
            if pace.ends_turn(min(len(text), PART_CHARS)):
                await asyncio.sleep(0)
            parts = self._tokenizer.count_parts(text)
            while (part_tokens := pace.measure(next, parts, None)) is not None:
                tokens += part_tokens
                if len(text) > PART_CHARS and pace.ends_turn(PART_CHARS):
                    await asyncio.sleep(0)
        return tokens
