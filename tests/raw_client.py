"""HTTP clients on bare sockets, which hide nothing and repair nothing: one blocking, one asynchronous.

Both return a `Reply`, which is the bytes that came back. Every wait on a socket is bounded.
"""

import asyncio
import contextlib
import dataclasses
import functools
import json
import re
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgspec

from cadenza.http.raw_client import open_with
from tests.schemas import check_error

TIMEOUT_S = 100.0
MESSAGES = [{"role": "user", "content": "Say hello."}]
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
EVENT = re.compile(rb"^data: (.*)$", re.MULTILINE)
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
PROTOCOLS = tuple(PATHS)
END = re.compile(rb"^(data: \[DONE\]|event: response\.completed|event: message_stop)$", re.MULTILINE)
CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]+)\r\n")


def body_of(protocol: str, messages: Any, **fields: Any) -> bytes:
    """The body of a request that says the same in each protocol."""
    if protocol == "responses":
        return json.dumps({"input": messages, **fields}).encode()
    required = {"max_tokens": 1000} if protocol == "messages" else {}
    return json.dumps({"messages": messages, **required, **fields}).encode()


@dataclasses.dataclass(frozen=True)
class Reply:
    """The bytes that came back, up to the end of the connection or to where the client left."""

    raw: bytes

    @property
    def status(self) -> int:
        """0 if not even a status arrived."""
        found = STATUS.match(self.raw)
        return int(found[1]) if found else 0

    @functools.cached_property
    def headers(self) -> dict[str, str]:
        """With names in lower case."""
        lines = self.raw.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    @functools.cached_property
    def body(self) -> bytes:
        body = self.raw.partition(b"\r\n\r\n")[2]
        return _dechunk(body) if self._is_chunked else body

    @property
    def is_complete(self) -> bool:
        """Every byte of the HTTP message arrived."""
        if self._is_chunked:
            return self.raw.endswith(b"\r\n0\r\n\r\n")
        return self.status != 0 and len(self.body) == int(self.headers["content-length"])

    @property
    def is_done(self) -> bool:
        """The answer arrived in full: the whole body of a plain 200, or a stream up to its last event."""
        if self.status != 200:
            return False
        return bool(END.search(self.body)) if self._is_chunked else self.is_complete

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(event) for event in EVENT.findall(self.body) if event.startswith(b"{")]

    @property
    def chunks(self) -> list[str]:
        """The text that was delivered, in the pieces in which it arrived."""
        if self.status != 200:
            return []
        if self.headers["content-type"] == "application/json":
            return [self.json["choices"][0]["message"]["content"]] if self.is_done else []
        return [text for text in map(_text_of_event, self.events) if text]

    @property
    def text(self) -> str:
        return "".join(self.chunks)

    @property
    def usage(self) -> dict[str, Any]:
        """The usage that the client was told."""
        return dict((self.json if self.headers["content-type"] == "application/json" else self.events[-1])["usage"])

    def error(self, status: int, type_: str = "invalid_request_error") -> str:
        """Check that the reply is this error, and return its message."""
        assert self.status == status, f"{self.status} {self.body[:500]!r}"
        assert self.headers["content-type"] == "application/json"
        return check_error(self.json, type_)

    @property
    def _is_chunked(self) -> bool:
        return "transfer-encoding" in self.headers


class RawClient:
    """The API of one service with one key. `key=None` sends no key. Each request has a connection of its own."""

    def __init__(self, port: int, key: str | None, timeout_s: float = TIMEOUT_S) -> None:
        self.port = port
        self.key = key
        self._timeout_s = timeout_s

    def chat(self, **fields: Any) -> Reply:
        """A chat request with one user message, unless the fields say otherwise."""
        return self.post({"messages": MESSAGES, **fields})

    def post(self, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
        """A chat request. A body of bytes is sent as it is."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request("POST", "/v1/chat/completions", sent, headers)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.request("GET", path, None, headers)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        fields = [f"{name}: {value}" for name, value in (headers or {}).items()]
        length = [] if body is None else [f"content-length: {len(body)}"]
        return Reply(self.send_raw(self.head(method, path, *length, *fields) + (body or b"")))

    def send_raw(self, data: bytes, *, end: bool = False) -> bytes:
        """Send these bytes on a connection of their own and return everything that comes back until it is closed."""
        with self.connect() as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
                if end:
                    connection.shutdown(socket.SHUT_WR)
            return read_all(connection)

    @contextlib.contextmanager
    def open_chat(self, protocol: str = "chat", messages: Any = MESSAGES, **fields: Any) -> Iterator[socket.socket]:
        """Send a chat request on a bare socket; the test decides what to read and when to leave."""
        with self.connect() as connection:
            connection.sendall(self.chat_bytes(body_of(protocol, messages, **fields), protocol=protocol))
            yield connection

    def chat_bytes(self, body: bytes, *fields: str, protocol: str = "chat") -> bytes:
        """The bytes of a chat request; `fields` are further header lines."""
        return self.head("POST", PATHS[protocol], f"content-length: {len(body)}", *fields) + body

    def head(self, method: str, path: str, *fields: str) -> bytes:
        key = [f"authorization: Bearer {self.key}"] if self.key else []
        lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", "connection: close", *key, *fields, "", ""]
        return "\r\n".join(lines).encode("latin-1")

    @contextlib.contextmanager
    def connect(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), self._timeout_s) as connection:
            yield connection


def read_until(connection: socket.socket, wanted: bytes) -> bytes:
    """Read up to and including the wanted bytes."""
    read = b""
    while wanted not in read:
        more = connection.recv(65_536)
        assert more, f"the connection ended before {wanted!r}: {read[-300:]!r}"
        read += more
    return read


def read_all(connection: socket.socket) -> bytes:
    parts = list[bytes]()
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


class ChatRequest(msgspec.Struct, frozen=True):
    """A chat request with a number, by which the upstream, the client and the store are compared.

    The number is in the message and in `x-request-id`; an odd one also in `idempotency-key`.
    """

    number: int
    class_id: str = "forte"
    stream: bool = False
    max_tokens: int | None = None
    protocol: str = "chat"

    @property
    def content(self) -> str:
        return f"{self.number} is the number of this request."

    @property
    def request_id(self) -> str:
        return f"fault-{self.number}"

    @property
    def is_once(self) -> bool:
        """Whether it has an idempotency key."""
        return self.number % 2 == 1

    def http(self, key: str) -> bytes:
        fields: dict[str, Any] = {"model": self.class_id}
        if self.stream:
            fields["stream"] = True
        if self.max_tokens is not None:
            fields["max_tokens"] = self.max_tokens
        ids = (f"x-request-id: {self.request_id}", *([f"idempotency-key: {self.request_id}"] if self.is_once else []))
        body = body_of(self.protocol, [{"role": "user", "content": self.content}], **fields)
        return RawClient(0, key).chat_bytes(body, *ids, protocol=self.protocol)


Leave = Callable[[Reply], Awaitable[bool]]


async def send(
    port: int, key: str, request: ChatRequest, leave: Leave | None = None, within_s: float = TIMEOUT_S
) -> Reply:
    """`leave` is called after the request was sent and after every read; True disconnects. OSError: nothing listens."""
    raw = b""
    async with asyncio.timeout(within_s), open_with(port, request.http(key)) as reader:
        with contextlib.suppress(ConnectionError):
            while not (leave and await leave(Reply(raw))) and (read := await reader.read(65_536)):
                raw += read
    return Reply(raw)


def leave_after(text: str) -> Leave:
    """Leave as soon as this much of the reply's text was delivered."""

    async def is_delivered(reply: Reply) -> bool:
        return len(reply.text) >= len(text)

    return is_delivered


def _text_of_event(event: dict[str, Any]) -> str:
    """The text that an event of a stream adds, in any protocol."""
    if "choices" in event:
        return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    if event.get("type") == "content_block_delta":
        return str(event["delta"].get("text", ""))
    return str(event["delta"]) if event.get("type") == "response.output_text.delta" else ""


def _dechunk(data: bytes) -> bytes:
    """The body of the chunks that have arrived so far."""
    parts, at = list[bytes](), 0
    while size := CHUNK_SIZE.match(data, at):
        end = size.end() + int(size[1], 16)
        parts.append(data[size.end() : end])
        at = end + 2
    return b"".join(parts)
