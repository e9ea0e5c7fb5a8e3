"""The size of a prompt in tokens: bounds that are free, and an exact count that is made only when needed.

A prompt has at most as many tokens as bytes, and no token has more than 128. The exact count costs 20 µs for a short
prompt and 25 ms for 100,000 tokens, so it is made only if a bound does not decide: a window may be too small, the
credit may not suffice, or the upstream gave no usage. Both are of everything that is sent (see sent.py).
"""

import asyncio
from collections.abc import Callable

import msgspec

from cadenza.core.chat import NO_MEDIA, LargeTexts, Media
from cadenza.core.errors import CadenzaError
from cadenza.core.tokens import Tokenizer, least_tokens, rough_tokens

QUICK_BYTES = 16 * 1024  # a larger prompt is not counted at once
BYTES_PER_TOKEN = 4  # of ordinary text


class Character:
    """The character text of one class, ready to be sent."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.json = msgspec.json.encode(text)[1:-1]  # escaped for a JSON string
        self.message = msgspec.Raw(msgspec.json.encode({"role": "system", "content": text}))
        self.size_bytes = len(bytes(self.message))


Texts = Callable[[], list[str]]  # makes the texts that are counted; most requests never need them


class PromptSize:
    """How many tokens a prompt has, the character layer included.

    `bound` is known without counting: a text has no more tokens than bytes. It includes `fields_bytes`, which a route
    adds by its configuration, and the most for images, audio and files. `exact` is our own count, once it was made.
    """

    _added: tuple[str, ...] = ()
    _added_chars = 0
    _sent_chars: int | None = None  # counted once: a stream asks for them with each mark
    _sent_tokens: int | None = None  # of what the client sent, and the character

    def __init__(
        self,
        tokenizer: Tokenizer,
        character: Character,
        texts: Texts | LargeTexts,
        body_bytes: int,
        media: Media = NO_MEDIA,
        fields_bytes: int = 0,
    ) -> None:
        bound = character.size_bytes + fields_bytes + body_bytes
        if media is not NO_MEDIA:
            bound += media.tokens_max - media.size_bytes
        self.bound = bound
        self.exact: int | None = None
        self.tokenizer = tokenizer
        self.media = media
        self._character = character
        self._texts = texts
        self._fields_bytes = fields_bytes

    def add_texts(self, texts: tuple[str, ...], size_bytes: int) -> None:
        """Texts were added to what the client sent. `size_bytes` is 0 for texts that are a part of the body.

        What was counted before need not be counted again.
        """
        self.bound += size_bytes
        self.exact = None
        self._added += texts
        self._added_chars += sum(map(len, texts))

    @property
    def is_quick(self) -> bool:
        """Whether it can be counted at once."""
        return self.bound <= QUICK_BYTES

    @property
    def at_least(self) -> int:
        """A lower bound that needs no count: no token is longer than the longest one."""
        return self.exact or least_tokens(self._chars)

    @property
    def rough(self) -> int:
        """The exact count if it was made, else an estimate by length that is rather too low."""
        return self.exact or rough_tokens(self._chars + len(self._character.text)) + self.media.tokens

    @property
    def about(self) -> int:
        """An estimate by the bytes, which is rather too high: for a prompt that cannot be counted."""
        return self.bound // BYTES_PER_TOKEN

    def to_hold(self, window_tokens: int) -> int:
        """How many tokens credit is held for, if the largest window is this: no model takes more."""
        if self.exact is None:
            return self.bound if self.bound < window_tokens else window_tokens
        in_doubt_tokens = self.media.tokens_held - self.media.tokens + self._fields_bytes
        return min(self.exact + in_doubt_tokens, window_tokens)

    async def count(self, *, is_urgent: bool = False) -> int:
        """The exact count, made once. CadenzaError if a large body cannot be counted now."""
        if self.exact is None:
            if self._sent_tokens is None:
                self._sent_tokens = await self._count_sent(is_urgent=is_urgent)
            added_tokens = await self._count(lambda: [*self._added], self._added_chars) if self._added else 0
            self.exact = self._sent_tokens + added_tokens + self.media.tokens
        return self.exact

    async def count_or_estimate(self) -> int:
        """For a charge: our own count or, if a large body cannot be counted at all, an estimate."""
        try:
            return await self.count(is_urgent=True)
        except CadenzaError:
            return self.about

    @property
    def _chars(self) -> int:
        """Of what was sent, without the character layer."""
        if self._sent_chars is None:
            texts = self._texts
            self._sent_chars = texts.chars if isinstance(texts, LargeTexts) else sum(map(len, texts()))
        return self._sent_chars + self._added_chars

    async def _count_sent(self, *, is_urgent: bool) -> int:
        texts, character = self._texts, self._character.text
        if isinstance(texts, LargeTexts):
            return await texts.count(character, is_urgent=is_urgent)
        return await self._count(lambda: [character, *texts()], self.bound)

    async def _count(self, texts: Texts, size: int) -> int:
        """Their tokens. The size, in bytes or in characters, decides where they are counted."""
        if self.tokenizer.is_loaded and size <= QUICK_BYTES:
            return self.tokenizer.count_prompt(texts())
        return await asyncio.to_thread(lambda: self.tokenizer.count_prompt(texts()))
