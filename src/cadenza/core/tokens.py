"""Counting tokens offline, with a real tokenizer (o200k).

A text never has more tokens than UTF-8 bytes, so most limits are decided by a length alone, and the tokenizer, which
takes 49 MB and 250 ms, is loaded when something must be counted for the first time. The service loads it in a thread as
it starts. The count is our own estimate: an upstream's tokenizer may differ, and if it reports usage, that is charged.
"""

import re
import threading
from collections.abc import Callable, Iterator, Sequence

from cadenza.core import o200k
from cadenza.core.records import CONTEXT_TOKENS_MAX, Route, Usage

TEMPLATE_TOKENS_MAX = 1024  # what a chat template may add to a prompt of any length
WINDOW_MARGIN_PARTS = 20  # our count may be off the upstream's own by one part in this many
OUTPUT_TOKENS_MIN = 16  # a shorter answer is of no use
PART_CHARS = 16 * 1024
CUT_TRIES_MAX = 32  # spaces that are looked at to find a good place to cut
MESSAGE_OVERHEAD_TOKENS = 4  # role and separators of one message in a chat template
CHARS_PER_TOKEN = 5  # of English prose; other text has fewer
TOKEN_BYTES_MAX = 128  # the longest token of o200k: 128 spaces
WORD_BYTES_PER_TOKEN = 3  # words have more, in every script
SIGNS = re.compile(r"[^\w\s]+|\d+")  # each of their bytes may be a token
COUNT_TOKENS_MAX = 2 * CONTEXT_TOKENS_MAX  # no prompt this long is served: beyond, the count is an estimate


class Tokenizer:
    """Counts tokens. One for the process, shared by its threads."""

    def __init__(self, part_chars: int = PART_CHARS) -> None:
        self._part_chars = part_chars
        self._lock = threading.Lock()
        self._encode: Callable[[str], list[int]] | None = None  # of o200k, once it is loaded

    @property
    def is_loaded(self) -> bool:
        return self._encode is not None

    def load(self) -> None:
        """Takes 250 ms the first time in a process."""
        with self._lock:
            if self._encode is None:
                self._encode = o200k.load().encode_ordinary

    def count(self, text: str) -> int:
        """A long text is counted in parts: its longest run decides how much memory the tokenizer's pattern takes."""
        return self._count_part(text) if len(text) <= self._part_chars else sum(self.count_parts(text))

    def count_parts(self, text: str) -> Iterator[int]:
        """The tokens of one part after the other, for a caller that lets others run in between: 7 ms at most each."""
        return map(self._count_part, _parts(text, self._part_chars))

    def count_prompt(self, texts: Sequence[str], enough_tokens: int = COUNT_TOKENS_MAX) -> int:
        """The tokens of a conversation, one text per message.

        Once `enough_tokens` are counted, the rest is estimated by its characters.
        """
        chars, counted_chars, tokens = sum(map(len, texts)), 0, len(texts) * MESSAGE_OVERHEAD_TOKENS
        for text in texts:
            for part in _parts(text, self._part_chars):
                tokens += self._count_part(part)
                counted_chars += len(part)
                if tokens > enough_tokens:
                    return tokens * chars // counted_chars
        return tokens

    def _count_part(self, part: str) -> int:
        if self._encode is None:
            self.load()
        assert self._encode
        return len(self._encode(part))


def least_tokens(chars: int) -> int:
    """The fewest tokens that `chars` characters can have."""
    return -(-chars // TOKEN_BYTES_MAX)


def rough_tokens(chars: int) -> int:
    """About how many tokens an ordinary text of `chars` characters has; rather fewer, in every script."""
    return chars // CHARS_PER_TOKEN


def _parts(text: str, part_chars: int) -> Iterator[str]:
    """Cut before a space if there is one: no token spans it."""
    start = 0
    while start < len(text):
        end = start + part_chars
        if end < len(text):
            end = _good_cut(text, start, end)
        yield text[start:end]
        start = end


def _good_cut(text: str, start: int, end: int) -> int:
    """The index of the last space before `end` that follows a word, if it is soon found, else `end`."""
    space = end
    for _ in range(CUT_TRIES_MAX):
        space = text.rfind(" ", start + 1, space)
        if space <= start:
            break
        if not text[space - 1].isspace():
            return space
    return end


def is_prompt_believable(reported: Usage, prompt_bytes: int) -> bool:
    return reported.prompt_tokens <= prompt_bytes + TEMPLATE_TOKENS_MAX


def believable(reported: Usage, own_prompt_tokens: int, prompt_bytes: int, output_limit: int) -> tuple[Usage, bool]:
    """An upstream's counts (or our own estimate) within what can be true, and whether they had to be corrected.

    A prompt has no more tokens than bytes, apart from its template; an output has no more than were allowed.
    """
    is_prompt_good = is_prompt_believable(reported, prompt_bytes)
    is_output_good = reported.completion_tokens <= output_limit
    if is_prompt_good and is_output_good:
        return reported, False
    return Usage(
        prompt_tokens=reported.prompt_tokens if is_prompt_good else own_prompt_tokens,
        completion_tokens=min(reported.completion_tokens, output_limit),
        cached_tokens=reported.cached_tokens if is_prompt_good else 0,
        estimated=reported.estimated or not is_prompt_good,
        completion_details=reported.completion_details if is_output_good else None,
    ), not reported.estimated


def estimate_tokens(text: str) -> int:
    """A rough, rather high estimate of the tokens of a text, without loading the tokenizer."""
    sign_bytes = len("".join(SIGNS.findall(text)).encode())
    word_bytes = len(text.encode()) - sign_bytes
    return sign_bytes - (-word_bytes // WORD_BYTES_PER_TOKEN)


def output_room(route: Route, prompt_tokens: int) -> int:
    """How many output tokens a route's window leaves after a prompt, with a margin if there is room for one."""
    bare_tokens = route.context_tokens - prompt_tokens
    careful_tokens = bare_tokens - prompt_tokens // WINDOW_MARGIN_PARTS
    return careful_tokens if careful_tokens >= OUTPUT_TOKENS_MIN else min(bare_tokens, OUTPUT_TOKENS_MIN)
