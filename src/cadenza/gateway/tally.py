"""The counts of one reply while it runs: what the upstream said last, and our own count of what was delivered."""

from cadenza.core.chat import FinishReason
from cadenza.core.records import Outcome, Usage
from cadenza.core.tokens import believable, count_tokens
from cadenza.upstreams.base import Fault, Piece

FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}


class Tally:
    """Begun with our own count of the prompt; the ledger reads `delivered_tokens` for its marks."""

    def __init__(self, prompt_tokens: int, prompt_bytes: int) -> None:
        self.delivered_tokens = 0
        self.has_calls = False
        self._finish_reason: FinishReason | None = None
        self.prompt_tokens = prompt_tokens
        self._prompt_bytes = prompt_bytes
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
    def finish_reason(self) -> FinishReason:
        """Calls that were made are the reason, whatever the upstream called it; none is then no reason."""
        assert self._finish_reason
        if self.has_calls:
            return "tool_calls"
        return "stop" if self._finish_reason == "tool_calls" else self._finish_reason

    def deliver(self, text: str) -> None:
        self.delivered_tokens += count_tokens(text)

    def so_far(self) -> Usage:
        """Our own count."""
        return Usage(self.prompt_tokens, self.delivered_tokens, estimated=True)

    def outcome(self, output_limit: int, fault: Fault | None = None) -> Outcome:
        """The upstream's counts where it gave any, within what can be true; our own otherwise."""
        own = self.so_far()
        usage, is_mended = believable(self._said or own, own, self._prompt_bytes, output_limit)
        return Outcome(
            usage,
            None if fault else self.finish_reason,
            fault=fault.kind.value if fault else None,
            is_free=fault is not None and not self.delivered_tokens,
            is_doubtful=is_mended or self._is_doubtful,
        )
