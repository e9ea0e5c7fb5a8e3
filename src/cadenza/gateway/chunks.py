"""Encodes the events of a streamed reply as the API defines them. Each chunk is one `data:` line."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from cadenza.core.chat import call_object, usage_object
from cadenza.core.records import FinishReason, Usage
from cadenza.core.tool_calls import ToolCallDelta
from cadenza.http.events import DONE

encode = msgspec.json.Encoder().encode
TEXT = b'{"index":0,"delta":{"content":%b},"finish_reason":null}]}\n\n'
ARGUMENTS = b'{"index":0,"delta":{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]},"finish_reason":null}]}\n\n'
CHOICE = b'{"index":0,"delta":%b,"finish_reason":%b}]}\n\n'
USAGE = b'],"usage":%b}\n\n'


class Events(Protocol):
    """Encodes what happens in a streamed reply: the bytes that the client is sent."""

    content: bytes  # a text: a format with one `%b`, for the JSON of the text

    def role(self) -> bytes:
        """The reply begins."""

    def call(self, delta: ToolCallDelta, /) -> bytes: ...

    def extras(self, extras: Mapping[str, Any], /) -> bytes:
        """A refusal or reasoning."""

    def annotations(self, annotations: Sequence[Mapping[str, Any]], /) -> bytes:
        """The sources of the reply."""

    def finish(self, reason: FinishReason, /) -> bytes: ...

    def usage(self, usage: Usage, cost_nano: int | None, /) -> bytes:
        """The counts, and the cost if the reply is to say it; then the stream ends."""


class Chunks:
    """Encodes the events of one stream. All of them have the same `id`, `created` and `model`.

    The bytes around a text are made once per stream, as a format; for most events only the text is encoded. The format
    of any other event begins like it.
    """

    __slots__ = ("content",)

    def __init__(self, completion_id: str, created: int, class_id: str) -> None:
        head = msgspec.json.encode(
            {"id": completion_id, "object": "chat.completion.chunk", "created": created, "model": class_id}
        )
        start = b"data: " + head[:-1].replace(b"%", b"%%") + b',"choices":['
        self.content = start + TEXT

    def role(self) -> bytes:
        return self._choice(b'{"role":"assistant","content":""}')

    def call(self, delta: ToolCallDelta) -> bytes:
        """One delta per chunk: some clients read only the first element of `tool_calls`."""
        if delta.type == "function" and not delta.id and not delta.extra_content:  # nearly all of them
            return (self.content.removesuffix(TEXT) + ARGUMENTS) % (delta.index, encode(delta.arguments))
        return self._choice(encode({"tool_calls": [call_object(delta)]}))

    def extras(self, extras: Mapping[str, Any]) -> bytes:
        """A refusal or reasoning."""
        return self._choice(encode(extras))

    def annotations(self, annotations: Sequence[Mapping[str, Any]]) -> bytes:
        return self._choice(encode({"annotations": annotations}))

    def finish(self, reason: FinishReason) -> bytes:
        return self._choice(b"{}", b'"%b"' % reason.encode())

    def usage(self, usage: Usage, cost_nano: int | None = None) -> bytes:
        return (self.content.removesuffix(TEXT) + USAGE) % encode(usage_object(usage, cost_nano)) + DONE

    def _choice(self, delta: bytes, reason: bytes = b"null") -> bytes:
        return (self.content.removesuffix(TEXT) + CHOICE) % (delta, reason)
