"""The token counts of one reply: what the upstream reported last, and our own count of what was delivered.

We count replies without usage and replies that break off. Most replies are never counted. The marks of a running stream
are estimated by length if the tokenizer is not loaded. Delivered text is kept until it is counted: at most 16 K
characters of it, or 64 K and what arrives between two marks while the tokenizer is not loaded.
"""

import asyncio
from io import StringIO
from typing import get_args

import msgspec

from cadenza.core.records import FinishReason, ReplyResult, Usage
from cadenza.core.tokens import Tokenizer, believable, is_prompt_believable, rough_tokens
from cadenza.routing.prompt import PromptSize
from cadenza.upstreams.base import Fault, Piece

TAIL_CHARS_MAX = 4096
UNCOUNTED_CHARS_MAX = 16 * 1024
KEPT_CHARS_MAX = 64 * 1024  # a stream that delivered more has the tokenizer loaded, to count what it keeps
WINDOW_DOUBT = 2  # our count of the prompt fits the window, and no tokenizer in use counts twice as many
FINISH_REASONS: dict[str, FinishReason] = {reason: reason for reason in get_args(FinishReason)}


class UsageMeter:
    """The counts of one reply, which may have at most `output_limit` tokens."""

    has_calls = False  # the reply makes tool calls
    _window_tokens = 0
    _finish_reason: FinishReason | None = None
    _reported: Usage | None = None
    _own: Usage | None = None
    _is_doubtful = False

    def __init__(self, tokenizer: Tokenizer, prompt: PromptSize, output_limit: int) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._output_limit = output_limit
        self._believable_tokens = prompt.believable_tokens  # the most that is believed for the prompt
        self._delivered = DeliveredText(tokenizer)
        self.deliver = self._delivered.add  # the client was sent this text

    def bound(self, window_tokens: int) -> None:
        """A route with this window answers. If a second one continues the reply, the larger window counts."""
        if window_tokens > self._window_tokens:
            self._window_tokens = window_tokens
        believable_tokens, most_tokens = self._prompt.believable_tokens, WINDOW_DOUBT * self._window_tokens
        self._believable_tokens = believable_tokens if believable_tokens < most_tokens else most_tokens

    @property
    def has_delivered(self) -> bool:
        return self._delivered.has_any

    @property
    def needs_count(self) -> bool:
        """Whether the upstream reported no usage, or more prompt tokens than can be true."""
        return self._reported is None or not is_prompt_believable(self._reported, self._believable_tokens)

    @property
    def finish_reason(self) -> FinishReason | None:
        """None before the end. A reply that was cut says so; otherwise tool calls that were made are the reason."""
        reason = self._finish_reason
        if reason in ("length", "content_filter"):
            return reason
        if reason and self.has_calls:
            return "tool_calls"
        return "stop" if reason == "tool_calls" else reason

    def take(self, piece: Piece) -> None:
        if piece.usage:
            self._reported = piece.usage  # the last one counts; they are never summed
        if piece.has_bad_usage:
            self._is_doubtful = True
        if piece.finish_reason:
            self._finish_reason = FINISH_REASONS.get(piece.finish_reason, "stop")

    async def progress(self) -> Usage:
        """What is charged if this process dies now: our own count, or an estimate that is rather too low."""
        if self._tokenizer.is_loaded or self._delivered.kept_chars > KEPT_CHARS_MAX:
            return await self.count()
        delivered_tokens = rough_tokens(self._delivered.kept_chars) or 1
        return Usage(self._prompt.rough, min(delivered_tokens, self._output_limit), estimated=True)

    async def count(self) -> Usage:
        """Our own count of the prompt and of what was delivered."""
        if not self._tokenizer.is_loaded:
            await asyncio.to_thread(self._tokenizer.load)
        prompt_tokens = await self._prompt.estimate()
        self._own = Usage(prompt_tokens, min(self._delivered.count(), self._output_limit), estimated=True)
        return self._own

    async def count_delivered(self) -> Usage:
        """The counts of a reply that broke off: of the prompt, the upstream's if it gave one that can be true."""
        own, reported = await self.count(), self._reported
        if reported is None or not is_prompt_believable(reported, self._believable_tokens):
            return own
        return msgspec.structs.replace(own, prompt_tokens=reported.prompt_tokens, cached_tokens=reported.cached_tokens)

    async def count_whole(self, text: str) -> None:
        """Our own count of a reply that is about to be delivered whole."""
        output_tokens = await asyncio.to_thread(self._tokenizer.count, text)
        self._own = Usage(await self._prompt.estimate(), min(output_tokens, self._output_limit), estimated=True)

    def result(self, fault: Fault | None = None) -> ReplyResult:
        """The reported counts, corrected if they cannot be true, or our own, which must have been made by now."""
        reported = self._reported or self._own or Usage(0, 0, estimated=True)
        own_prompt_tokens = self._own.prompt_tokens if self._own else 0
        usage, is_corrected = believable(reported, own_prompt_tokens, self._believable_tokens, self._output_limit)
        return ReplyResult(
            usage,
            self.finish_reason,
            fault=fault.kind.value if fault else None,
            is_free=fault is not None and not self.has_delivered,
            is_doubtful=is_corrected or self._is_doubtful,
        )


class DeliveredText:
    """Counts the tokens of a text that comes in pieces, with the same result as for the whole text."""

    has_any = False
    kept_chars = 0  # of `_uncounted`
    _uncounted: StringIO  # from the first piece on; a list of short texts would take ten times the memory
    _tail = ""  # the end of what was counted: its tokens depend on what follows
    _tokens_before_tail = 0
    _tokens = 0

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def add(self, text: str) -> None:
        """Keep the text. It is counted when a count is needed, not with every chunk."""
        if not self.has_any:
            self.has_any, self._uncounted = True, StringIO()
        self.kept_chars += self._uncounted.write(text)
        if self.kept_chars > UNCOUNTED_CHARS_MAX and self._tokenizer.is_loaded:
            self.count()

    def count(self) -> int:
        if self.kept_chars:
            self._tail += self._uncounted.getvalue()
            self._uncounted = StringIO()
            self.kept_chars = 0
            if end := _last_word(self._tail):
                self._tokens_before_tail += self._tokenizer.count(self._tail[:end])
                self._tail = self._tail[end:]
            self._tokens = self._tokens_before_tail + self._tokenizer.count(self._tail)
        return self._tokens


def _last_word(text: str) -> int:
    """The index of the space before the last word, which no token spans. A very long word is cut."""
    space = text.rfind(" ")
    while space > 0 and text[space - 1].isspace():
        space = text.rfind(" ", 0, space)
    start = max(space, 0)
    return start if len(text) - start <= TAIL_CHARS_MAX else len(text)
