"""Prompts whose tokens and bytes a test knows, and the tokenizer that counts them."""

import msgspec

from cadenza.core.records import Route
from cadenza.core.tokens import MESSAGE_OVERHEAD_TOKENS, Tokenizer
from cadenza.routing.prompt import Character, PromptSize

TOKENIZER = Tokenizer()
NO_CHARACTER = Character("")


class Paid(msgspec.Struct, frozen=True):
    """Held credit for so much output, and the routes that were asked."""

    output_limit: int
    asked: list[Route | None] = []

    def note_asked(self, route: Route | None) -> None:
        self.asked.append(route)


def prompt_of(tokens: int, size_bytes: int = 0, tokenizer: Tokenizer = TOKENIZER) -> PromptSize:
    """A prompt with this many tokens, and this many bytes if they are more than its text needs. Not counted yet."""
    text = " a" * (tokens - 2 * MESSAGE_OVERHEAD_TOKENS)  # one token each
    return PromptSize(tokenizer, NO_CHARACTER, lambda: [text], max(size_bytes - NO_CHARACTER.size_bytes, len(text)))
