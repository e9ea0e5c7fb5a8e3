"""Prompts whose tokens and bytes a test knows, and the tokenizer that counts them."""

import msgspec

from cadenza.core.chat import ChatRequest
from cadenza.core.records import Plan, Route
from cadenza.core.tokens import MESSAGE_OVERHEAD_TOKENS, Tokenizer
from cadenza.gateway.chat import compose, edit
from cadenza.routing.prompt import Character, PromptSize
from cadenza.upstreams.base import Ask

TOKENIZER = Tokenizer()
NO_CHARACTER = Character("")


class Paid(msgspec.Struct, frozen=True):
    """Held credit for so much output, and the routes that were asked."""

    output_limit: int
    asked: list[Route | None] = []

    def record_attempt(self, route: Route | None) -> None:
        self.asked.append(route)


def prompt_of(tokens: int, size_bytes: int = 0, tokenizer: Tokenizer = TOKENIZER) -> PromptSize:
    """A prompt with this many tokens, and this many bytes if they are more than its text needs. Not counted yet."""
    text = " a" * (tokens - 2 * MESSAGE_OVERHEAD_TOKENS)  # one token each
    return PromptSize(tokenizer, NO_CHARACTER, lambda: [text], max(size_bytes - NO_CHARACTER.size_bytes, len(text)))


async def ask_of(chat: ChatRequest, character: Character, prompt: PromptSize, credit: Paid, plan: Plan) -> Ask:
    """The ask of a request without grounding."""
    return await edit(compose(chat, character, prompt, credit, plan), chat, character)
