"""A raw asyncio client: it sends one chat request, reads what comes, and leaves when it is told to.

Every request carries its own number in its message, in `x-request-id` and in `idempotency-key`, so that the upstream,
the client and the store can be compared request by request.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

READ_S = 60.0
EVENT = re.compile(rb"^data: (.*)$", re.MULTILINE)


class Ask(msgspec.Struct, frozen=True):
    """One chat request."""

    number: int
    class_id: str = "forte"
    stream: bool = False
    max_tokens: int | None = None

    @property
    def content(self) -> str:
        return f"{self.number} is the number of this request."

    @property
    def shown_id(self) -> str:
        return f"fault-{self.number}"

    def http(self, key: str) -> bytes:
        fields: dict[str, Any] = {"messages": [{"role": "user", "content": self.content}], "model": self.class_id}
        if self.stream:
            fields["stream"] = True
        if self.max_tokens is not None:
            fields["max_tokens"] = self.max_tokens
        body = json.dumps(fields).encode()
        lines = [
            "POST /v1/chat/completions HTTP/1.1",
            "host: 127.0.0.1",
            "connection: close",
            f"authorization: Bearer {key}",
            f"x-request-id: {self.shown_id}",
            f"idempotency-key: {self.shown_id}",
            f"content-length: {len(body)}",
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body


class Seen(msgspec.Struct, frozen=True):
    """What came back: bytes up to the end of the connection, or up to where the client left."""

    raw: bytes

    @property
    def status(self) -> int:
        """0 where not even a status came."""
        found = re.match(rb"HTTP/1\.1 (\d{3}) ", self.raw)
        return int(found[1]) if found else 0

    @property
    def headers(self) -> dict[str, str]:
        lines = self.raw.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    @property
    def body(self) -> bytes:
        body = self.raw.partition(b"\r\n\r\n")[2]
        return _dechunk(body) if "transfer-encoding" in self.headers else body

    @property
    def is_done(self) -> bool:
        """The reply came in full: the whole body of a 200, or [DONE]."""
        if self.status != 200:
            return False
        if "transfer-encoding" in self.headers:
            return b"\ndata: [DONE]\n" in self.body
        return len(self.body) == int(self.headers["content-length"])

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(event) for event in EVENT.findall(self.body) if event.startswith(b"{")]

    @property
    def chunks(self) -> list[str]:
        """The texts that were delivered, in the pieces in which they came."""
        if self.status != 200:
            return []
        if self.headers["content-type"] == "application/json":
            return [json.loads(self.body)["choices"][0]["message"]["content"]] if self.is_done else []
        deltas = (choice["delta"] for event in self.events for choice in event.get("choices", []))
        return [delta["content"] for delta in deltas if delta.get("content")]

    @property
    def text(self) -> str:
        return "".join(self.chunks)

    @property
    def usage(self) -> dict[str, Any]:
        """As the client was told it."""
        if self.headers["content-type"] == "application/json":
            return dict(json.loads(self.body)["usage"])
        return dict(self.events[-1]["usage"])


Leave = Callable[[Seen], Awaitable[bool]]


async def send(port: int, key: str, ask: Ask, leave: Leave | None = None, within_s: float = READ_S) -> Seen:
    """`leave` is asked after the sending and after every read whether it is time to go. OSError: nobody listens."""
    async with asyncio.timeout(within_s):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        raw = b""
        try:
            with contextlib.suppress(ConnectionError):
                writer.write(ask.http(key))
                while not (leave and await leave(Seen(raw))) and (read := await reader.read(65_536)):
                    raw += read
        finally:
            writer.transport.abort()
        return Seen(raw)


def leave_after(text: str) -> Leave:
    """Leave as soon as this much of the reply's text was delivered."""

    async def is_time(seen: Seen) -> bool:
        return len(seen.text) >= len(text)

    return is_time


def _dechunk(data: bytes) -> bytes:
    """The body of what has come so far."""
    body = b""
    while size := re.match(rb"([0-9a-fA-F]+)\r\n", data):
        length = int(size[1], 16)
        body += data[size.end() : size.end() + length]
        data = data[size.end() + length + 2 :]
    return body
