"""Counting tokens offline, with a real tokenizer (o200k).

A text never has more tokens than UTF-8 bytes, so most limits are decided by a length alone, and the tokenizer, which
takes 65 MB and 70 ms, is loaded when something must be counted for the first time. The count is our own estimate: an
upstream's tokenizer may differ, and if it reports usage, that is charged.
"""

import re
import threading
from collections.abc import Callable, Iterator, Sequence

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

# The tokenizer needs up to 2 seconds for a megabyte of these characters in long runs, instead of 40 ms.
SLOW_RUNS = {"-": 64, "=": 64, "*": 64, "/": 64, "#": 64, " ": 64, "\t": 24}  # the shortest slow run
RUNS = [(char * chars, re.compile(f"{re.escape(char)}{{{chars},}}")) for char, chars in SLOW_RUNS.items()]
RUN_CHARS = 128  # the tokens of a long run grow linearly in steps of this length


class Tokenizer:
    """Counts tokens. One for the process, shared by its threads."""

    def __init__(self, part_chars: int = PART_CHARS) -> None:
        self._part_chars = part_chars
        self._lock = threading.Lock()
        self._count_tokens: Callable[[str], int] | None = None  # of o200k, once it is loaded
        self._runs: dict[str, int] = {}  # the tokens of short runs; there are about 1,500 such runs

    @property
    def is_loaded(self) -> bool:
        return self._count_tokens is not None

    def load(self) -> None:
        """Takes 70 ms the first time. It holds the interpreter's lock meanwhile, so a thread does not help."""
        with self._lock:
            if self._count_tokens is None:
                from rs_bpe.bpe import openai  # noqa: PLC0415 65 MB that many processes never need

                self._count_tokens = openai.o200k_base().count

    def count(self, text: str) -> int:
        """A long text is counted in parts: the tokenizer holds the interpreter's lock, for 1 ms each instead of 200."""
        return self._count_part(text) if len(text) <= self._part_chars else sum(self.count_parts(text))

    def count_parts(self, text: str) -> Iterator[int]:
        """The tokens of one part after the other, for a caller that lets others run in between."""
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
        """Long runs of one character are counted separately. This changes the count by at most two tokens per run."""
        for run, pattern in RUNS:
            if run in part:
                return self._count_around(pattern, part)
        if self._count_tokens is None:
            self.load()
        assert self._count_tokens
        return self._count_tokens(part)

    def _count_around(self, pattern: re.Pattern[str], part: str) -> int:
        """Count the runs, and what is between them. The last space of a run belongs to the word that follows it."""
        start, tokens = 0, 0
        for match in pattern.finditer(part):
            run = match[0]
            if run.isspace() and match.end() < len(part):
                run = run[:-1]
            tokens += self._count_part(part[start : match.start()]) + self._count_run(run)
            start = match.start() + len(run)
        return tokens + self._count_part(part[start:])

    def _count_run(self, run: str) -> int:
        """A long run is counted as a short one, and then the same number for each further 128 characters."""
        repeats = max(len(run) // RUN_CHARS - 1, 0)
        tokens = self._count_short_run(run[: len(run) - repeats * RUN_CHARS])
        return tokens + repeats * self._count_short_run(run[:RUN_CHARS]) if repeats else tokens

    def _count_short_run(self, run: str) -> int:
        tokens = self._runs.get(run)
        if tokens is None:
            self.load()
            assert self._count_tokens
            tokens = self._runs[run] = self._count_tokens(run)
        return tokens


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
