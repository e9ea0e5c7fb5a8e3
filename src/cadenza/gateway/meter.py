"""The counts of one reply while it runs: what the upstream said last, and our own count of what was delivered.

Our own is for replies without counts, for those that break off, and for the marks of those that take long. Most are
never counted; what was delivered is kept meanwhile, but of a long answer no more than its end.
"""

import asyncio

from cadenza.core.chat import FinishReason
from cadenza.core.records import OUTPUT_TOKENS_MAX, ReplyResult, Usage
from cadenza.core.tokens import believable, count_tokens, is_loaded, is_prompt_believable, load
from cadenza.gateway.compose import Prompt
from cadenza.upstreams.base import Fault, Piece

TAIL_CHARS_MAX = 4096
UNCOUNTED_CHARS_MAX = 16 * 1024
FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}


class UsageMeter:
    """Begun with the prompt; the ledger has it counted for its marks."""

    def __init__(self, prompt: Prompt) -> None:
        self.output_limit = OUTPUT_TOKENS_MAX  # what the reply may have, once it is known
        self.has_calls = False
        self.has_delivered = False
        self._finish_reason: FinishReason | None = None
        self._prompt = prompt
        self._counted_tokens = self._delivered_tokens = 0
        self._uncounted: list[str] = []  # what was delivered since the last count
        self._uncounted_chars = 0
        self._tail = ""  # the end of what was counted, whose tokens depend on what follows
        self._said: Usage | None = None
        self._own: Usage | None = None
        self._is_doubtful = False

    @property
    def has_counts(self) -> bool:
        """Whether the upstream gave counts, and our own of the prompt is not needed to mend them."""
        return self._said is not None and is_prompt_believable(self._said, self._prompt.size_bytes)

    def take(self, piece: Piece) -> None:
        self._said = piece.usage or self._said  # the last one counts; they are never summed
        self._is_doubtful |= piece.has_bad_usage
        if piece.finish_reason:
            self._finish_reason = FINISH_REASONS.get(piece.finish_reason, "stop")

    @property
    def finish_reason(self) -> FinishReason | None:
        """None before the end. Calls that were made are the reason, whatever the upstream called it."""
        if self._finish_reason and self.has_calls:
            return "tool_calls"
        return "stop" if self._finish_reason == "tool_calls" else self._finish_reason

    def deliver(self, text: str) -> None:
        """Note what was delivered. It is counted when the count is asked for, and not with every chunk."""
        self.has_delivered = True
        self._uncounted.append(text)
        self._uncounted_chars += len(text)
        if self._uncounted_chars > UNCOUNTED_CHARS_MAX and is_loaded():
            self._count_delivered()

    async def count(self) -> Usage:
        """Our own count of the prompt and of what was delivered, however it was cut up."""
        if not is_loaded():
            await asyncio.to_thread(load)
        prompt_tokens = await self._prompt.count()
        self._own = Usage(prompt_tokens, self._count_delivered(), estimated=True)
        return self._own

    async def count_whole(self, text: str) -> None:
        """Our own count of a reply of which nothing was delivered yet."""
        output_tokens = await asyncio.to_thread(count_tokens, text)
        self._own = Usage(await self._prompt.count(), min(output_tokens, self.output_limit), estimated=True)

    def outcome(self, fault: Fault | None = None) -> ReplyResult:
        """The upstream's counts where it gave any, within what can be true; else our own, which are made by now."""
        said = self._said or self._own or Usage(0, 0, estimated=True)
        own_prompt_tokens = self._own.prompt_tokens if self._own else 0
        usage, is_mended = believable(said, own_prompt_tokens, self._prompt.size_bytes, self.output_limit)
        return ReplyResult(
            usage,
            self.finish_reason,
            fault=fault.kind.value if fault else None,
            is_free=fault is not None and not self.has_delivered,
            is_doubtful=is_mended or self._is_doubtful,
        )

    def _count_delivered(self) -> int:
        """Nobody pays for more than was allowed."""
        if self._uncounted:
            self._tail += "".join(self._uncounted)
            self._uncounted.clear()
            self._uncounted_chars = 0
            if end := _last_word(self._tail):
                self._counted_tokens += count_tokens(self._tail[:end])
                self._tail = self._tail[end:]
            self._delivered_tokens = self._counted_tokens + count_tokens(self._tail)
        return min(self._delivered_tokens, self.output_limit)


def _last_word(text: str) -> int:
    """Where the last word begins, its space included: no token reaches over it. A word without end is cut."""
    space = text.rfind(" ")
    while space > 0 and text[space - 1].isspace():
        space = text.rfind(" ", 0, space)
    start = max(space, 0)
    return start if len(text) - start <= TAIL_CHARS_MAX else len(text)
