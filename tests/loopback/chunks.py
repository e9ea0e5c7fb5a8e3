"""The bytes and JSON of an OpenAI-compatible upstream: chunks, completions, events and HTTP heads.

Every object carries the upstream's own id, model and fingerprint, which must never reach a client.
"""

import json
from collections.abc import Mapping
from typing import Any

UPSTREAM_ID = "upstream-id-71"
UPSTREAM_MODEL = "upstream-model-72"
UPSTREAM_FINGERPRINT = "upstream-print-73"
UPSTREAM_MARKS = (UPSTREAM_ID, UPSTREAM_MODEL, UPSTREAM_FINGERPRINT)
CACHED = {"cached_tokens": 3}
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18, "prompt_tokens_details": CACHED}


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """One upstream chunk, with the names and extras that must never reach a client."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish, "logprobs": None, "vendor_note": UPSTREAM_ID}
    return {**_envelope("chat.completion.chunk"), "choices": [choice], **fields}


def said(text: str) -> dict[str, Any]:
    return chunk({"content": text})


def completion(content: Any, finish: str | None = "stop", **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "vendor_note": UPSTREAM_ID}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {**_envelope("chat.completion"), "choices": [choice], "usage": USAGE, **fields}


def _envelope(kind: str) -> dict[str, Any]:
    marks = {"id": UPSTREAM_ID, "model": UPSTREAM_MODEL, "system_fingerprint": UPSTREAM_FINGERPRINT}
    return {**marks, "object": kind, "created": 1}


def sse_event(value: dict[str, Any], line_end: bytes = b"\n") -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + line_end * 2


def http_head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def framed(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def usage_of(prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> dict[str, Any]:
    """A usage object with these counts."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def usage_chunk(usage: Any = USAGE) -> dict[str, Any]:
    """The chunk without choices that carries a stream's usage."""
    return chunk(choices=[], usage=usage)


ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk(finish="stop")
SSE_HEAD = http_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
