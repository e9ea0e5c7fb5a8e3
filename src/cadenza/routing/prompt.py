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

INLINE_BYTES = 16 * 1024  # a larger prompt is counted off the event loop
BYTES_PER_TOKEN = 4  # of ordinary text; for a prompt that cannot be counted


class Character:
    """The character text of one class, ready to be sent."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.json = msgspec.json.encode(text)[1:-1]  # escaped for a JSON string
        self.message = msgspec.Raw(msgspec.json.encode({"role": "system", "content": text}))
        self.size_bytes = len(bytes(self.message))


Texts = Callable[[], list[str]]  # makes the texts that are counted; most requests never need them


MEDIA_DOUBT = 8  # an upstream may count this multiple of our maximum for images, audio and PDFs


class PromptSize:
    """How many tokens a prompt has, the character layer included.

    `size_bytes` is the upper bound that is known without counting: a text has no more tokens than bytes. An upstream
    that reports more than `believable_tokens` for the prompt is not believed: models count images very differently.
    `fields_bytes` is what a route adds to the request by its configuration: credit is held for it too.
    """

    _added: tuple[str, ...] = ()
    _added_chars = 0
    _sent_chars: int | None = None  # counted once: a stream asks for them with each mark
    _sent_tokens: int | None = None  # of what the client sent, and the character
    _character_tokens: int | None = None

    def __init__(
        self,
        tokenizer: Tokenizer,
        character: Character,
        texts: Texts | LargeTexts,
        body_bytes: int,
        media: Media = NO_MEDIA,
        fields_bytes: int = 0,
    ) -> None:
        size_bytes = believable_tokens = character.size_bytes + fields_bytes + body_bytes
        if media is not NO_MEDIA:
            size_bytes += media.tokens_max - media.size_bytes
            believable_tokens = size_bytes + media.doubtful_tokens * (MEDIA_DOUBT - 1)
        self.size_bytes = size_bytes
        self.at_most = size_bytes  # the best known upper bound: the exact count if it was made, else the bytes
        self.believable_tokens = believable_tokens
        self.tokenizer = tokenizer
        self._character = character
        self._texts = texts
        self._media = media
        self._fields_bytes = fields_bytes
        self._exact: int | None = None
        self.is_exact = False  # whether the tokens have been counted

    def add_texts(self, texts: tuple[str, ...], size_bytes: int) -> None:
        """Texts were added to what the client sent. `size_bytes` is 0 for texts that are a part of the body.

        What was counted before need not be counted again.
        """
        self.size_bytes += size_bytes
        self.at_most = self.size_bytes
        self.believable_tokens += size_bytes
        self._added += texts
        self._added_chars += sum(map(len, texts))
        self._exact, self.is_exact = None, False

    @property
    def is_quick(self) -> bool:
        """Whether it can be counted on the event loop."""
        return self.size_bytes <= INLINE_BYTES

    def to_hold(self, window_tokens: int) -> int:
        """How many tokens credit is held for, if the largest window is this: no model takes more."""
        if self._exact is None:
            return self.size_bytes if self.size_bytes < window_tokens else window_tokens
        in_doubt_tokens = self._media.tokens_held - self._media.tokens + self._fields_bytes
        return min(self._exact + in_doubt_tokens, window_tokens)

    @property
    def at_least(self) -> int:
        """The best known lower bound: the exact count if it was made, else that of the longest possible tokens."""
        return least_tokens(self._chars) if self._exact is None else self._exact

    @property
    def rough(self) -> int:
        """The exact count if it was made, else an estimate by length that is rather too low."""
        if self._exact is None:
            return rough_tokens(self._chars + len(self._character.text)) + self._media.tokens
        return self._exact

    @property
    def about(self) -> int:
        """How many tokens credit would be held for, by the bytes: ordinary text has four to a token."""
        return (self.size_bytes - self._media.tokens_max) // BYTES_PER_TOKEN + self._media.tokens_held

    async def exact(self, *, is_urgent: bool = False) -> int:
        """Our own count, made once. CadenzaError if a large body cannot be counted now."""
        if self._exact is None:
            if self._sent_tokens is None:
                self._sent_tokens = await self._count_sent(is_urgent=is_urgent)
            added_tokens = await self._count(lambda: [*self._added], self._added_chars) if self._added else 0
            self.at_most = self._exact = self._sent_tokens + added_tokens + self._media.tokens
            self.is_exact = True
        return self._exact

    @property
    def _chars(self) -> int:
        """Of what was sent, without the character layer."""
        if self._sent_chars is None:
            texts = self._texts
            self._sent_chars = texts.chars if isinstance(texts, LargeTexts) else sum(map(len, texts()))
        return self._sent_chars + self._added_chars

    async def _count_sent(self, *, is_urgent: bool) -> int:
        if isinstance(self._texts, LargeTexts):
            tokens, self._character_tokens = await self._texts.count(self._character.text, is_urgent=is_urgent)
            return tokens + self._character_tokens
        texts = self._texts
        return await self._count(lambda: [self._character.text, *texts()], self.size_bytes)

    async def exact_of_client(self) -> int:
        """The count of what the client sent, without the character layer."""
        tokens = await self.exact()
        if self._character_tokens is None:
            self._character_tokens = await self._count(lambda: [self._character.text], self._character.size_bytes)
        return tokens - self._character_tokens

    async def estimate(self) -> int:
        """For a charge: our own count or, if a large body cannot be counted at all, an estimate by its bytes."""
        try:
            return await self.exact(is_urgent=True)
        except CadenzaError:
            return self.size_bytes // BYTES_PER_TOKEN

    async def _count(self, texts: Texts, size: int) -> int:
        """Their tokens. The size, in bytes or in characters, decides where they are counted."""
        if self.tokenizer.is_loaded and size <= INLINE_BYTES:
            return self.tokenizer.count_prompt(texts())
        return await asyncio.to_thread(lambda: self.tokenizer.count_prompt(texts()))
