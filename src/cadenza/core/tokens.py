"""Counting tokens with a real tokenizer (o200k) that works offline.

A text never has more tokens than UTF-8 bytes, so most limits are settled by a length alone.
The count is our own estimate: an upstream's tokenizer may differ, and its usage is the truth where it gives one.
"""

from collections.abc import Iterable

from rs_bpe.bpe import openai

MESSAGE_OVERHEAD_TOKENS = 4  # role and separators of one message in a chat template

_O200K = openai.o200k_base()


def count_tokens(text: str) -> int:
    return int(_O200K.count(text))


def count_prompt(texts: Iterable[str]) -> int:
    """The tokens of a conversation, one text per message."""
    return sum(count_tokens(text) + MESSAGE_OVERHEAD_TOKENS for text in texts)
