"""Encodes the events of a streamed reply as the API defines them. Each chunk is one `data:` line."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from cadenza.core.chat import call_object, usage_object
from cadenza.core.records import FinishReason, Usage
from cadenza.core.tool_calls import ToolCallDelta
from cadenza.http.events import write_event

_ENCODE = msgspec.json.Encoder().encode
CONTENT_TAIL = b'},"finish_reason":null}]}\n\n'


class Events(Protocol):
    """Encodes what happens in a streamed reply: the bytes that the client is sent."""

    def role(self) -> bytes:
        """The reply begins."""

    def content(self, text: str, /) -> bytes: ...

    def call(self, delta: ToolCallDelta, /) -> bytes: ...

    def extras(self, extras: Mapping[str, Any], /) -> bytes:
        """A refusal or reasoning."""

    def annotations(self, annotations: Sequence[Mapping[str, Any]], /) -> bytes:
        """The sources of the reply."""

    def finish(self, reason: FinishReason, /) -> bytes: ...

    def usage(self, usage: Usage, cost_nano: int | None, /) -> bytes:
        """The counts, and the cost if the reply is to say it."""


class Chunks:
    """Encodes the events of one stream. All of them have the same `id`, `created` and `model`.

    The bytes around the delta are encoded once per stream; for each event only the delta is encoded.
    """

    def __init__(self, completion_id: str, created: int, class_id: str) -> None:
        head = msgspec.json.encode(
            {"id": completion_id, "object": "chat.completion.chunk", "created": created, "model": class_id}
        )
        self._head = head[:-1] + b',"choices":['
        self._content_head = b"data: " + self._head + b'{"index":0,"delta":{"content":'

    def role(self) -> bytes:
        return self._choice(b'{"role":"assistant","content":""}', b"null")

    def content(self, text: str) -> bytes:
        return self._content_head + _ENCODE(text) + CONTENT_TAIL

    def call(self, delta: ToolCallDelta) -> bytes:
        """One delta per chunk: some clients read only the first element of `tool_calls`."""
        return self._choice(msgspec.json.encode({"tool_calls": [call_object(delta)]}), b"null")

    def extras(self, extras: Mapping[str, Any]) -> bytes:
        """A refusal or reasoning."""
        return self._choice(_ENCODE(extras), b"null")

    def annotations(self, annotations: Sequence[Mapping[str, Any]]) -> bytes:
        return self._choice(_ENCODE({"annotations": annotations}), b"null")

    def finish(self, reason: FinishReason) -> bytes:
        return self._choice(b"{}", b'"' + reason.encode() + b'"')

    def usage(self, usage: Usage, cost_nano: int | None = None) -> bytes:
        return write_event(self._head + b'],"usage":' + msgspec.json.encode(usage_object(usage, cost_nano)) + b"}")

    def _choice(self, delta: bytes, finish: bytes) -> bytes:
        return write_event(self._head + b'{"index":0,"delta":' + delta + b',"finish_reason":' + finish + b"}]}")
