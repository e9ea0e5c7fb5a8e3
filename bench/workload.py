"""The chat request that every gateway gets. A tag in its prompt tells the upstream which reply to send.

The tag is at the start of the user's message, because every gateway forwards that unchanged. Each chunk of a reply
contains one MARK, so the client can count the marks to check that the whole reply arrived.
"""

import enum
import re
from collections.abc import Mapping

import msgspec

MARK = b" chord"
SHAPE_TAG = re.compile(rb"\[bench (\d+) (\d+) (\d)\]")
TEXT = (
    "Explain to somebody who plays no instrument what a cadence is, why a listener hears it as an end, and name three "
    "pieces in which it is delayed for longer than one would expect."
)
OUTPUT_TOKENS_MIN = 256


class End(enum.IntEnum):
    """How a reply ends. Silent: a stream that stays open after its first chunk. Failed: a 500 instead of a reply."""

    COMPLETE = 0
    SILENT = 1
    CALLS = 2  # two parallel tool calls
    FAILED = 3


class Protocol(msgspec.Struct, frozen=True):
    """An API for chats: its path, what each chunk of a stream has once, and what its last event has."""

    path: str
    mark: bytes
    end: bytes


CHAT = Protocol("/v1/chat/completions", MARK, b"[DONE]")
RESPONSES = Protocol("/v1/responses", MARK + b'"}', b"response.completed")  # its end repeats the text
MESSAGES = Protocol("/v1/messages", MARK, b"message_stop")


class Shape(msgspec.Struct, frozen=True):
    """The reply to send. Zero chunks: a plain reply."""

    chunks: int = 0
    gap_ms: int = 0
    end: End = End.COMPLETE

    @property
    def marks(self) -> int:
        return self.chunks or 1

    @property
    def tag(self) -> str:
        return f"[bench {self.chunks} {self.gap_ms} {self.end:d}]"


PLAIN = Shape()
BURST = Shape(chunks=100)
SPACED = Shape(chunks=100, gap_ms=5)
SPACED_SHORT = Shape(chunks=20, gap_ms=5)
SILENT = Shape(chunks=100, end=End.SILENT)


class Target(msgspec.Struct, frozen=True):
    """Where chat requests go: a gateway, or the upstream itself."""

    port: int
    model: str = "bench"
    headers: Mapping[str, str] = {}
    path: str = CHAT.path

    def request(self, shape: Shape, text: str = TEXT) -> bytes:
        """The whole HTTP request as bytes."""
        body = chat_body(self.model, shape, text, self.path)
        return self.head(len(body)) + body

    def head(self, body_bytes: int) -> bytes:
        more = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        return (
            f"POST {self.path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\ncontent-type: application/json\r\n"
            f"{more}content-length: {body_bytes}\r\n\r\n"
        ).encode()


def chat_body(model: str, shape: Shape, text: str = TEXT, path: str = CHAT.path) -> bytes:
    is_responses, limit = path == RESPONSES.path, max(OUTPUT_TOKENS_MIN, 2 * shape.chunks)
    body = {
        "model": model,
        "input" if is_responses else "messages": [{"role": "user", "content": f"{shape.tag} {text}"}],
        "temperature": 0.7,
        "top_p": 0.9,
        "max_output_tokens" if is_responses else "max_tokens": limit,
    }
    if shape.chunks:
        body["stream"] = True
        if path not in (RESPONSES.path, MESSAGES.path):
            body["stream_options"] = {"include_usage": True}
    return msgspec.json.encode(body)


def read_shape(body: bytes | bytearray) -> Shape:
    found = SHAPE_TAG.search(body)
    return Shape(int(found[1]), int(found[2]), End(int(found[3]))) if found else PLAIN
