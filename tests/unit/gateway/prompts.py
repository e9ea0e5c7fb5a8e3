"""Prompts of which a test knows the tokens and the bytes."""

from cadenza.core.tokens import MESSAGE_OVERHEAD_TOKENS
from cadenza.gateway.compose import Character, Prompt

NOBODY = Character("")


def prompt_of(tokens: int, size_bytes: int = 0) -> Prompt:
    """A prompt of just so many tokens, and of so many bytes where that matters; it is not counted yet."""
    text = " a" * (tokens - 2 * MESSAGE_OVERHEAD_TOKENS)  # a token each
    return Prompt(NOBODY, [text], max(size_bytes - NOBODY.size_bytes, len(text)))
