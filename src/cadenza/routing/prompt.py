"""The size of a prompt in tokens: an upper bound that is free, and an exact count that is made only when needed.

A prompt has at most as many tokens as bytes. The exact count costs 16 µs for a short prompt and 25 ms for 100,000
tokens, so it is made only if the bound does not decide: a window may be too small, the credit may not suffice, or the
upstream gave no usage.
"""

import asyncio
from collections.abc import Callable

import msgspec

from cadenza.core.tokens import Tokenizer

INLINE_BYTES = 16 * 1024  # a larger prompt is counted off the event loop


class Character:
    """The character text of one class, ready to be sent."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.message = msgspec.Raw(msgspec.json.encode({"role": "system", "content": text}))
        self.size_bytes = len(bytes(self.message))


class PromptSize:
    """How many tokens a prompt has, the character layer included."""

    def __init__(self, tokenizer: Tokenizer, character: Character, texts: list[str], body_bytes: int) -> None:
        self.size_bytes = character.size_bytes + body_bytes
        self._tokenizer = tokenizer
        self._character = character
        self._texts = texts
        self._exact: int | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the tokens have been counted."""
        return self._exact is not None

    @property
    def at_most(self) -> int:
        """The best known bound: the exact count if it was made, else the bytes."""
        return self.size_bytes if self._exact is None else self._exact

    async def exact(self) -> int:
        """Our own count, made once."""
        if self._exact is None:
            is_quick = self._tokenizer.is_loaded and self.size_bytes <= INLINE_BYTES
            self._exact = self._count() if is_quick else await asyncio.to_thread(self._count)
        return self._exact

    async def exact_of_client(self) -> int:
        """The count of what the client sent, without the character layer."""
        return await self.exact() - self._tokenizer.count_prompt([self._character.text])

    async def size_for(self, is_decisive: Callable[[int], bool]) -> int:
        """The bound if it decides the question, else the exact count."""
        return self.at_most if is_decisive(self.at_most) else await self.exact()

    def _count(self) -> int:
        return self._tokenizer.count_prompt([self._character.text, *self._texts])
