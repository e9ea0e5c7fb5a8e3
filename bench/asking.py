"""What the load asks and the upstream answers: one request for every gateway, whose prompt says what reply it wants.

The wish stands at the head of the user's message, for that is what every gateway passes on unchanged. Each piece of a
reply carries one MARK, so that whoever counts them knows whether all of it came through.
"""

import re
from collections.abc import Mapping

import msgspec

MARK = b" chord"
DONE = b"[DONE]"
CHAT_PATH = "/v1/chat/completions"
WISH = re.compile(rb"\[bench (\d+) (\d+) (\d)\]")
TEXT = (
    "Explain to somebody who plays no instrument what a cadence is, why a listener hears it as an end, and name three "
    "pieces in which it is delayed for longer than one would expect."
)
OUTPUT_TOKENS_MIN = 256


class Shape(msgspec.Struct, frozen=True):
    """The reply that is wanted. No chunks: not a stream. Silent: nothing after the first chunk, and no end."""

    chunks: int = 0
    gap_ms: int = 0
    is_silent: bool = False

    @property
    def marks(self) -> int:
        return self.chunks or 1

    @property
    def wish(self) -> str:
        return f"[bench {self.chunks} {self.gap_ms} {int(self.is_silent)}]"


PLAIN = Shape()
BURST = Shape(chunks=100)
SPACED = Shape(chunks=100, gap_ms=5)
SPACED_SHORT = Shape(chunks=20, gap_ms=5)
SILENT = Shape(chunks=100, is_silent=True)


class Target(msgspec.Struct, frozen=True):
    """Where chat requests go: a gateway, or the upstream itself."""

    port: int
    model: str = "bench"
    headers: Mapping[str, str] = {}
    path: str = CHAT_PATH

    def request(self, shape: Shape, text: str = TEXT) -> bytes:
        """The whole request, as it goes over the wire."""
        body = chat_body(self.model, shape, text)
        return self.head(len(body)) + body

    def head(self, body_bytes: int) -> bytes:
        more = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        return (
            f"POST {self.path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\ncontent-type: application/json\r\n"
            f"{more}content-length: {body_bytes}\r\n\r\n"
        ).encode()


def chat_body(model: str, shape: Shape, text: str = TEXT) -> bytes:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"{shape.wish} {text}"}],
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": max(OUTPUT_TOKENS_MIN, 2 * shape.chunks),
    }
    if shape.chunks:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return msgspec.json.encode(body)


def read_wish(body: bytes | bytearray) -> Shape:
    found = WISH.search(body)
    return Shape(int(found[1]), int(found[2]), found[3] == b"1") if found else PLAIN
