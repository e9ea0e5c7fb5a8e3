"""What the clients ask, from a seed: request N is the same in every run and for every gateway.

A tag in the prompt tells the upstream how to answer. Each request of an account has a longer prompt than the one before
it, so its prompt tokens identify it in what a gateway says that it charged.
"""

import random
import re
from typing import Self

import msgspec

GAPS_MS = (0, 10, 20, 50)
TOKENS_MIN, TOKENS_MAX = 4, 40
MAX_TOKENS = 64
STREAMED = 0.6  # the part of the requests that stream
LEFT = 0.1  # the part of the streams whose client disconnects half-way
TAG = re.compile(r"\[money (\d{6}) (\d{3}) (\d{3})\]")
INPUT_NANO, OUTPUT_NANO = 1_070, 3_450  # dollars x 1e-9 for a token; every gateway is configured with these


class ScriptedRequest(msgspec.Struct, frozen=True):
    """One request. The upstream makes `tokens` tokens, `gap_ms` apart."""

    number: int
    tokens: int
    gap_ms: int
    is_stream: bool = False
    leaves_after: int | None = None  # tokens

    @classmethod
    def make(cls, seed: int, number: int, *, may_leave: bool = True) -> Self:
        chance = random.Random(f"{seed}-{number}")  # noqa: S311 not for secrets
        tokens, gap_ms = chance.randint(TOKENS_MIN, TOKENS_MAX), chance.choice(GAPS_MS)
        is_stream, leaves = chance.random() < STREAMED, chance.random() < LEFT
        leaves_after = tokens // 2 if may_leave and is_stream and leaves else None
        return cls(number, tokens, gap_ms, is_stream, leaves_after)

    @classmethod
    def read(cls, prompt: str) -> Self:
        """From the tag of a prompt."""
        found = TAG.search(prompt)
        assert found, "the upstream was asked something else than the clients ask"
        number, tokens, gap_ms = map(int, found.groups())
        return cls(number, tokens, gap_ms)

    def body(self, model: str, words: int) -> bytes:
        """The JSON of the request, with a prompt of so many words after the tag."""
        prompt = f"[money {self.number:06d} {self.tokens:03d} {self.gap_ms:03d}]" + " la" * words
        fields: dict[str, object] = {"model": model, "messages": [{"role": "user", "content": prompt}]}
        if self.is_stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        return msgspec.json.encode(fields | {"max_tokens": MAX_TOKENS})


def price(prompt_tokens: int, completion_tokens: int) -> int:
    """In nano-dollars."""
    return prompt_tokens * INPUT_NANO + completion_tokens * OUTPUT_NANO
