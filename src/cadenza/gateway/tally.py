"""The counts of one reply while it runs: what the upstream said last, and our own count of what was delivered."""

from cadenza.core.chat import FinishReason
from cadenza.core.records import OUTPUT_TOKENS_MAX, Outcome, Usage
from cadenza.core.tokens import believable, count_tokens
from cadenza.upstreams.base import Fault, Piece

TAIL_CHARS_MAX = 4096
FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}


class Tally:
    """Begun with our own count of the prompt; the ledger reads `delivered_tokens` for its marks."""

    def __init__(self, prompt_tokens: int, prompt_bytes: int) -> None:
        self.output_limit = OUTPUT_TOKENS_MAX  # what the reply may have, once it is known
        self.has_calls = False
        self._finish_reason: FinishReason | None = None
        self.prompt_tokens = prompt_tokens
        self._prompt_bytes = prompt_bytes
        self._counted_tokens = self._delivered_tokens = 0
        self._uncounted: list[str] = []  # what was delivered since the last count
        self._tail = ""  # the end of what was counted, whose tokens depend on what follows
        self._said: Usage | None = None
        self._is_doubtful = False

    @property
    def has_counts(self) -> bool:
        return self._said is not None

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
        self._uncounted.append(text)

    @property
    def delivered_tokens(self) -> int:
        """The count of what was delivered, however it was cut up; nobody pays for more than was allowed."""
        if self._uncounted:
            self._tail += "".join(self._uncounted)
            self._uncounted.clear()
            if end := _last_word(self._tail):
                self._counted_tokens += count_tokens(self._tail[:end])
                self._tail = self._tail[end:]
            self._delivered_tokens = self._counted_tokens + count_tokens(self._tail)
        return min(self._delivered_tokens, self.output_limit)

    def estimate(self, text: str) -> None:
        """Our own count of a reply of which nothing was delivered yet."""
        self._said = Usage(self.prompt_tokens, min(count_tokens(text), self.output_limit), estimated=True)

    def so_far(self) -> Usage:
        """Our own count."""
        return Usage(self.prompt_tokens, self.delivered_tokens, estimated=True)

    def outcome(self, fault: Fault | None = None) -> Outcome:
        """The upstream's counts where it gave any, within what can be true; our own otherwise."""
        own = self.so_far()
        usage, is_mended = believable(self._said or own, own, self._prompt_bytes, self.output_limit)
        return Outcome(
            usage,
            self.finish_reason,
            fault=fault.kind.value if fault else None,
            is_free=fault is not None and not self.delivered_tokens,
            is_doubtful=is_mended or self._is_doubtful,
        )


def _last_word(text: str) -> int:
    """Where the last word begins, its space included: no token reaches over it. A tail without end is cut."""
    if len(text) > TAIL_CHARS_MAX:
        return len(text)
    space = text.rfind(" ")
    while space > 0 and text[space - 1].isspace():
        space = text.rfind(" ", 0, space)
    return max(space, 0)
