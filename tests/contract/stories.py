"""Streams of an upstream that end well, and those that die on their way."""

from typing import Any

from tests.loopback import Close, Event, Pause, Reset, Sse, chunk, said

ROLE = chunk({"role": "assistant", "content": ""})
FINISH = chunk(finish="stop")
DEATHS: dict[str, list[Event]] = {
    "reset": [Reset()],
    "closed": [Close()],
    "closed within an event": [b'data: {"choices": [{"delta": {"content": "wo', Close()],
    "closed within a letter": [b'data: {"choices":[{"index":0,"delta":{"content":"caf\xc3', Close()],
    "silent": [Pause()],
    "error event": [{"error": {"message": "boom"}}],
    "garbage": [b"data: {nothing\n\n"],
    "end without a finish reason": [],
}


def counts(prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> dict[str, Any]:
    return chunk(
        choices=[],
        usage={
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        },
    )


def dying(*texts: str, death: str = "reset") -> Sse:
    return Sse([ROLE, *map(said, texts), *DEATHS[death]])


def ending(*texts: str, usage: dict[str, Any] | None = None) -> Sse:
    return Sse([ROLE, *map(said, texts), FINISH, *([usage] if usage else [])])
