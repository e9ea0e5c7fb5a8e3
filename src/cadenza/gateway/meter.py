"""The token counts of one reply: what the upstream reported last, and our own count of what was delivered.

We count replies without usage and replies that break off. Most replies are never counted. In the marks of a running
stream a long prompt is estimated by its length, and all is if the tokenizer is not loaded. Delivered text is kept until
it is counted: at most 16 K characters of it, or 64 K and what arrives between two marks while the tokenizer is not
loaded.
"""

import asyncio
from io import StringIO
from typing import get_args

import msgspec

from cadenza.core.chat import NO_MEDIA
from cadenza.core.content import Content
from cadenza.core.records import FinishReason, ReplyResult, Usage
from cadenza.core.tokens import believable, is_prompt_believable, rough_tokens
from cadenza.routing.prompt import PromptSize
from cadenza.upstreams.base import Fault, Piece

TAIL_CHARS_MAX = 4096
UNCOUNTED_CHARS_MAX = 16 * 1024
KEPT_CHARS_MAX = 64 * 1024  # a stream that delivered more has the tokenizer loaded, to count what it keeps
WINDOW_DOUBT = 2  # our count of the prompt fits the window, and no tokenizer in use counts twice as many
MEDIA_DOUBT = 8  # an upstream may count this multiple of our maximum for images, audio and PDFs
FINISH_REASONS: dict[str, FinishReason] = {reason: reason for reason in get_args(FinishReason)}


class UsageMeter(Content, msgspec.Struct, eq=False):
    """The counts of one reply, which may have at most `output_limit` tokens.

    Its text is counted in pieces, with the same result as for the whole text.
    """

    prompt: PromptSize
    output_limit: int
    believable_tokens: int = 0  # the most that is believed for the prompt, once a route answers
    window_tokens: int = 0
    last_reason: FinishReason | None = None  # as the upstream gave it
    reported: Usage | None = None
    own: Usage | None = None
    is_doubtful: bool = False
    has_calls: bool = False  # the reply makes tool calls
    has_delivered: bool = False
    uncounted: StringIO | None = None  # from the first text on; a list of short texts would take ten times the memory
    tail: str = ""  # the end of what was counted: its tokens depend on what follows
    tokens_before_tail: int = 0
    tokens: int = 0

    def deliver(self, text: str) -> None:
        """The client was sent this text. It is counted when a count is needed, not with every chunk."""
        if self.uncounted is None:
            self.uncounted, self.has_delivered = StringIO(), True
        self.uncounted.write(text)
        if self.uncounted.tell() > UNCOUNTED_CHARS_MAX and self.prompt.tokenizer.is_loaded:
            self._count_delivered()

    @property
    def kept_chars(self) -> int:
        return self.uncounted.tell() if self.uncounted else 0

    def bound(self, window_tokens: int) -> None:
        """A route with this window answers. If a second one continues the reply, the larger window counts."""
        if window_tokens > self.window_tokens:
            self.window_tokens = window_tokens
        prompt, most_tokens = self.prompt, WINDOW_DOUBT * self.window_tokens
        believable_tokens = prompt.bound
        if prompt.media is not NO_MEDIA:
            believable_tokens += prompt.media.doubtful_tokens * (MEDIA_DOUBT - 1)
        self.believable_tokens = believable_tokens if believable_tokens < most_tokens else most_tokens

    @property
    def needs_count(self) -> bool:
        """Whether the upstream reported no usage, or more prompt tokens than can be true."""
        return self.reported is None or not is_prompt_believable(self.reported, self.believable_tokens)

    @property
    def finish_reason(self) -> FinishReason | None:
        """None before the end. A reply that was cut says so; otherwise tool calls that were made are the reason."""
        reason = self.last_reason
        if reason in ("length", "content_filter"):
            return reason
        if reason and self.has_calls:
            return "tool_calls"
        return "stop" if reason == "tool_calls" else reason

    def take(self, piece: Piece) -> None:
        if piece.usage:
            self.reported = piece.usage  # the last one counts; they are never summed
        if piece.has_bad_usage:
            self.is_doubtful = True
        if piece.finish_reason:
            self.last_reason = FINISH_REASONS.get(piece.finish_reason, "stop")

    async def progress(self) -> Usage:
        """What is charged if this process dies now: our own count, or an estimate that is rather too low."""
        prompt, tokenizer = self.prompt, self.prompt.tokenizer
        if self.kept_chars > KEPT_CHARS_MAX:
            await self._load_tokenizer()
        if not tokenizer.is_loaded:
            delivered_tokens = rough_tokens(self.kept_chars) or 1
            return Usage(prompt.rough, min(delivered_tokens, self.output_limit), estimated=True)
        prompt_tokens = await prompt.count() if prompt.is_quick else prompt.rough
        return Usage(prompt_tokens, min(self._count_delivered(), self.output_limit), estimated=True)

    async def count(self) -> Usage:
        """Our own count of the prompt and of what was delivered."""
        await self._load_tokenizer()
        prompt_tokens = await self.prompt.count_or_estimate()
        self.own = Usage(prompt_tokens, min(self._count_delivered(), self.output_limit), estimated=True)
        return self.own

    async def count_delivered(self) -> Usage:
        """The counts of a reply that broke off: of the prompt, the upstream's if it gave one that can be true."""
        own, reported = await self.count(), self.reported
        if reported is None or not is_prompt_believable(reported, self.believable_tokens):
            return own
        return msgspec.structs.replace(own, prompt_tokens=reported.prompt_tokens, cached_tokens=reported.cached_tokens)

    async def count_whole(self, text: str) -> None:
        """Our own count of a reply that is about to be delivered whole."""
        output_tokens = await asyncio.to_thread(self.prompt.tokenizer.count, text)
        self.own = Usage(await self.prompt.count_or_estimate(), min(output_tokens, self.output_limit), estimated=True)

    def result(self, fault: Fault | None = None) -> ReplyResult:
        """The reported counts, corrected if they cannot be true, or our own, which must have been made by now."""
        reported = self.reported or self.own or Usage(0, 0, estimated=True)
        own_prompt_tokens = self.own.prompt_tokens if self.own else 0
        usage, is_corrected = believable(reported, own_prompt_tokens, self.believable_tokens, self.output_limit)
        return ReplyResult(
            usage,
            self.finish_reason,
            fault=fault.kind.value if fault else None,
            is_free=fault is not None and not self.has_delivered,
            is_doubtful=is_corrected or self.is_doubtful,
        )

    async def _load_tokenizer(self) -> None:
        if not self.prompt.tokenizer.is_loaded:
            await asyncio.to_thread(self.prompt.tokenizer.load)

    def _count_delivered(self) -> int:
        if self.uncounted and self.kept_chars:
            self.tail += self.uncounted.getvalue()
            self.uncounted = StringIO()
            if end := _last_word(self.tail):
                self.tokens_before_tail += self.prompt.tokenizer.count(self.tail[:end])
                self.tail = self.tail[end:]
            self.tokens = self.tokens_before_tail + self.prompt.tokenizer.count(self.tail)
        return self.tokens


def _last_word(text: str) -> int:
    """The index of the space before the last word, which no token spans. A very long word is cut."""
    space = text.rfind(" ")
    while space > 0 and text[space - 1].isspace():
        space = text.rfind(" ", 0, space)
    start = max(space, 0)
    return start if len(text) - start <= TAIL_CHARS_MAX else len(text)
