"""Counting tokens with a real tokenizer (o200k) that works offline.

A text never has more tokens than UTF-8 bytes, so most limits are settled by a length alone, and the tokenizer, which
takes 65 MB and 70 ms, is loaded when something must be counted for the first time.
The count is our own estimate: an upstream's tokenizer may differ, and its usage is the truth where it gives one.
"""

import threading
from collections.abc import Iterable, Iterator
from typing import Protocol

from cadenza.core.records import Plan, Route, Usage

TEMPLATE_TOKENS_MAX = 1024  # what a chat template may add to a prompt of any length
WINDOW_MARGIN = 0.05  # how far our count may be from the upstream's own
OUTPUT_TOKENS_MIN = 16  # an answer of less is none
PART_CHARS = 16 * 1024
MESSAGE_OVERHEAD_TOKENS = 4  # role and separators of one message in a chat template


class _Tokenizer(Protocol):
    def count(self, text: str, /) -> int: ...


_loading = threading.Lock()
_o200k: _Tokenizer | None = None


def is_loaded() -> bool:
    """Whether counting begins at once."""
    return _o200k is not None


def load() -> _Tokenizer:
    global _o200k  # noqa: PLW0603 loaded once for the process
    with _loading:
        if _o200k is None:
            from rs_bpe.bpe import openai  # noqa: PLC0415 see above

            _o200k = openai.o200k_base()
        return _o200k


def count_tokens(text: str) -> int:
    """A long text is counted in parts: the tokenizer holds the interpreter's lock, for 1 ms each and not for 200."""
    count = (_o200k or load()).count
    if len(text) <= PART_CHARS:
        return int(count(text))
    return sum(int(count(part)) for part in _parts(text))


def _parts(text: str) -> Iterator[str]:
    """Cut before a space where there is one: no token reaches over it."""
    start = 0
    while start < len(text):
        end = start + PART_CHARS
        space = text.rfind(" ", start + 1, end) if end < len(text) else -1
        while space > start and text[space - 1].isspace():
            space = text.rfind(" ", start + 1, space)
        end = space if space > start else end
        yield text[start:end]
        start = end


def count_prompt(texts: Iterable[str]) -> int:
    """The tokens of a conversation, one text per message."""
    return sum([count_tokens(text) + MESSAGE_OVERHEAD_TOKENS for text in texts])


def is_prompt_believable(said: Usage, prompt_bytes: int) -> bool:
    return said.prompt_tokens <= prompt_bytes + TEMPLATE_TOKENS_MAX


def believable(said: Usage, own_prompt_tokens: int, prompt_bytes: int, output_limit: int) -> tuple[Usage, bool]:
    """The upstream's counts (or an estimate of ours) within what can be true, and whether they had to be mended.

    A prompt has no more tokens than bytes, but for its template; an output has no more than were allowed.
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


def is_ample(plan: Plan, prompt_bytes: int, output_tokens: int) -> bool:
    """Whether every route has room for a prompt of that size, whatever its tokens, beside such an answer."""
    return all(output_room(route, prompt_bytes) >= min(output_tokens, route.max_output_tokens) for route in plan.routes)


def output_room(route: Route, prompt_tokens: int) -> int:
    """What a route's window leaves for output beside a prompt, with a margin where there is room for one."""
    bare_tokens = route.context_tokens - prompt_tokens
    careful_tokens = bare_tokens - int(prompt_tokens * WINDOW_MARGIN)
    return careful_tokens if careful_tokens >= OUTPUT_TOKENS_MIN else min(bare_tokens, OUTPUT_TOKENS_MIN)
