"""The API over bare HTTP: what an SDK would hide or mend stays visible. Every wait on a socket is bounded."""

import contextlib
import http.client
import json
import re
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tests.schemas import check_error

TIMEOUT_S = 30.0
MESSAGES = [{"role": "user", "content": "Say hello."}]


class Reply(msgspec.Struct, frozen=True):
    """A whole reply. Header names are in lower case; `complete` is False where the connection broke off."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool = True

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def error(self, status: int, type_: str = "invalid_request_error") -> str:
        """The message, once the reply is held to be this error."""
        assert self.status == status, f"{self.status} {self.body[:500]!r}"
        assert self.headers["content-type"] == "application/json"
        return check_error(self.json, type_)


class Wire:
    """One service as seen by one key. `key=None` sends no key."""

    def __init__(self, port: int, key: str | None) -> None:
        self.port = port
        self._key_headers = {"authorization": f"Bearer {key}"} if key else {}

    def chat(self, **fields: Any) -> Reply:
        """A chat request with one user message, unless the fields say otherwise."""
        return self.post({"messages": MESSAGES, **fields})

    def post(self, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
        """A chat request whose body is sent as it stands where it is bytes."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request("POST", "/v1/chat/completions", sent, headers)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.request("GET", path, None, headers)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request(method, path, body, {**self._key_headers, **(headers or {})})
            return _read(connection.getresponse())

    def send_raw(self, data: bytes, *, end: bool = False) -> bytes:
        """Bytes as they stand on a connection of their own, and all that comes back until it is closed."""
        with self.connect() as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
                if end:
                    connection.shutdown(socket.SHUT_WR)
            return read_all(connection)

    @contextlib.contextmanager
    def open_chat(self, **fields: Any) -> Iterator[socket.socket]:
        """A chat request on a bare socket, so that the test decides what is read and when it ends."""
        with self.connect() as connection:
            connection.sendall(self.chat_bytes(json.dumps({"messages": MESSAGES, **fields}).encode()))
            yield connection

    def chat_bytes(self, body: bytes, *fields: str) -> bytes:
        """A whole chat request as it goes over the wire; `fields` are further header lines."""
        return self.head("POST", "/v1/chat/completions", f"content-length: {len(body)}", *fields) + body

    def head(self, method: str, path: str, *fields: str) -> bytes:
        keys = [f"{name}: {value}" for name, value in self._key_headers.items()]
        lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", "connection: close", *keys, *fields, "", ""]
        return "\r\n".join(lines).encode("latin-1")

    @contextlib.contextmanager
    def connect(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S) as connection:
            yield connection


def read_until(connection: socket.socket, wanted: bytes) -> bytes:
    """What the connection says, up to and with what is wanted."""
    seen = b""
    while wanted not in seen:
        read = connection.recv(65_536)
        assert read, f"the connection ended before {wanted!r}: {seen[-300:]!r}"
        seen += read
    return seen


def read_all(connection: socket.socket) -> bytes:
    seen = b""
    with contextlib.suppress(ConnectionError):
        while read := connection.recv(65_536):
            seen += read
    return seen


def parse_raw(raw: bytes) -> Reply:
    """A reply that was read as bytes. Its body must have a content-length."""
    head, _, body = raw.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
    assert status, f"no HTTP reply: {raw[:200]!r}"
    fields = (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])
    return Reply(int(status[1]), {name.lower(): value.strip() for name, _, value in fields}, body)


def _read(response: http.client.HTTPResponse) -> Reply:
    headers = {name.lower(): value for name, value in response.getheaders()}
    try:
        return Reply(response.status, headers, response.read())
    except http.client.IncompleteRead as broken:
        return Reply(response.status, headers, broken.partial, complete=False)
