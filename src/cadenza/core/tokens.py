"""Counting tokens offline, with a real tokenizer (o200k).

A text never has more tokens than UTF-8 bytes, so most limits are decided by a length alone, and the tokenizer, which
takes 65 MB and 70 ms, is loaded when something must be counted for the first time. The count is our own estimate: an
upstream's tokenizer may differ, and where it gives usage, that is what counts.
"""

import threading
from collections.abc import Iterable, Iterator
from typing import Protocol

from cadenza.core.records import Route, Usage

TEMPLATE_TOKENS_MAX = 1024  # what a chat template may add to a prompt of any length
WINDOW_MARGIN = 0.05  # how far our count may be from the upstream's own
OUTPUT_TOKENS_MIN = 16  # a shorter answer is of no use
PART_CHARS = 16 * 1024
MESSAGE_OVERHEAD_TOKENS = 4  # role and separators of one message in a chat template


class _Encoding(Protocol):
    def count(self, text: str, /) -> int: ...


class Tokenizer:
    """Counts tokens. One for the process, shared by its threads."""

    def __init__(self, part_chars: int = PART_CHARS) -> None:
        self._part_chars = part_chars
        self._lock = threading.Lock()
        self._encoding: _Encoding | None = None

    @property
    def is_loaded(self) -> bool:
        return self._encoding is not None

    def load(self) -> None:
        """Takes 70 ms the first time: not for the event loop's thread."""
        with self._lock:
            if self._encoding is None:
                from rs_bpe.bpe import openai  # noqa: PLC0415 65 MB that many processes never need

                self._encoding = openai.o200k_base()

    def count(self, text: str) -> int:
        """A long text is counted in parts: the tokenizer holds the interpreter's lock, for 1 ms each instead of 200."""
        if self._encoding is None:
            self.load()
        assert self._encoding
        count = self._encoding.count
        if len(text) <= self._part_chars:
            return int(count(text))
        return sum(int(count(part)) for part in _parts(text, self._part_chars))

    def count_prompt(self, texts: Iterable[str]) -> int:
        """The tokens of a conversation, one text per message."""
        return sum([self.count(text) + MESSAGE_OVERHEAD_TOKENS for text in texts])


def _parts(text: str, part_chars: int) -> Iterator[str]:
    """Cut before a space where there is one: no token spans it."""
    start = 0
    while start < len(text):
        end = start + part_chars
        space = text.rfind(" ", start + 1, end) if end < len(text) else -1
        while space > start and text[space - 1].isspace():
            space = text.rfind(" ", start + 1, space)
        end = space if space > start else end
        yield text[start:end]
        start = end


def is_prompt_believable(said: Usage, prompt_bytes: int) -> bool:
    return said.prompt_tokens <= prompt_bytes + TEMPLATE_TOKENS_MAX


def believable(said: Usage, own_prompt_tokens: int, prompt_bytes: int, output_limit: int) -> tuple[Usage, bool]:
    """An upstream's counts (or our own estimate) within what can be true, and whether they had to be corrected.

    A prompt has no more tokens than bytes, apart from its template; an output has no more than were allowed.
    """
    is_prompt_good = is_prompt_believable(said, prompt_bytes)
    is_output_good = said.completion_tokens <= output_limit
    if is_prompt_good and is_output_good:
        return said, False
    return Usage(
        prompt_tokens=said.prompt_tokens if is_prompt_good else own_prompt_tokens,
        completion_tokens=min(said.completion_tokens, output_limit),
        cached_tokens=said.cached_tokens if is_prompt_good else 0,
        estimated=said.estimated or not is_prompt_good,
        completion_details=said.completion_details if is_output_good else None,
    ), not said.estimated


def output_room(route: Route, prompt_tokens: int) -> int:
    """What a route's window leaves for output beside a prompt, with a margin where there is room for one."""
    bare_tokens = route.context_tokens - prompt_tokens
    careful_tokens = bare_tokens - int(prompt_tokens * WINDOW_MARGIN)
    return careful_tokens if careful_tokens >= OUTPUT_TOKENS_MIN else min(bare_tokens, OUTPUT_TOKENS_MIN)
