"""Sends requests over plain sockets, so that they can be malformed, incomplete, or given up in the middle."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode

import msgspec

REPLY_S = 30.0
CSRF = re.compile(rb'data-csrf="([0-9a-f]*)"')
CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}


class AuditReply(msgspec.Struct, frozen=True):
    """What came back. The status is 0 if nothing did."""

    status: int
    head: bytes
    body: bytes


NO_REPLY = AuditReply(0, b"", b"")


class AuditClient:
    """One client, with a key or without, and the cookies of a browser."""

    def __init__(self, port: int, key: str = "", host: str = "127.0.0.1") -> None:
        self.key = key
        self.host = host
        self.port = port
        self._cookies: dict[str, str] = {}
        self._csrf = ""

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> AuditReply:
        return await self.send("GET", path, b"", headers)

    @property
    def cookies(self) -> list[str]:
        """The values of its cookies."""
        return list(self._cookies.values())

    async def chat(self, body: Mapping[str, Any] | bytes, headers: Mapping[str, str] | None = None) -> AuditReply:
        data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        return await self.send("POST", CHAT, data, {**JSON, **(headers or {})})

    async def api(self, method: str, path: str, body: Mapping[str, Any]) -> AuditReply:
        """Call an endpoint below /platform/api, as a script of our own pages does."""
        headers = {**JSON, "x-cadenza-csrf": self._csrf}
        return await self.send(method, f"/platform/api{path}", json.dumps(body, ensure_ascii=False).encode(), headers)

    async def upload(self, path: str, body: bytes) -> AuditReply:
        """Send bytes to an endpoint below /platform/api."""
        return await self.send("POST", f"/platform/api{path}", body, {"x-cadenza-csrf": self._csrf})

    async def sign_in(self, email: str, password: str, headers: Mapping[str, str] | None = None) -> AuditReply:
        await self.get("/sign-in")
        reply = await self.send_form("/sign-in", {"email": email, "password": password}, headers)
        await self.get("/settings")
        return reply

    async def send_form(
        self, path: str, fields: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> AuditReply:
        """Send a form of our own pages."""
        form = urlencode({"csrf": self._csrf, **fields}).encode()
        given = {"content-type": "application/x-www-form-urlencoded", **(headers or {})}
        return await self.send("POST", path, form, given)

    async def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> AuditReply:
        reply = await self.send_raw(self.encode(method, path, body, headers))
        if found := CSRF.search(reply.body):
            self._csrf = found[1].decode()
        for line in re.findall(rb"(?im)^set-cookie: (.*?)\r?$", reply.head):
            self._cookies |= {name: morsel.value for name, morsel in SimpleCookie(line.decode()).items()}
        return reply

    def encode(self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
        fields = {"host": f"{self.host}:{self.port}", "connection": "close", "content-length": str(len(body))}
        if self.key:
            fields["authorization"] = f"Bearer {self.key}"
        if self._cookies:
            fields["cookie"] = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        lines = "".join(f"{name}: {value}\r\n" for name, value in {**fields, **(headers or {})}.items())
        return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body

    async def send_raw(self, data: bytes) -> AuditReply:
        """Send these bytes and read until the service closes."""
        async with asyncio.timeout(REPLY_S), self.open(data) as (reader, _):
            received = await _read_to_end(reader)
        head, _, body = received.partition(b"\r\n\r\n")
        words = head.split(b" ", 2)
        return AuditReply(int(words[1]) if len(words) > 1 and words[1].isdigit() else 0, head, body)

    @asynccontextmanager
    async def open(self, data: bytes) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Send these bytes; the client disconnects when the block ends."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(data)
            with contextlib.suppress(ConnectionError):  # a reply may come before the whole request is read
                await writer.drain()
            yield reader, writer
        finally:
            writer.transport.abort()


async def _read_to_end(reader: asyncio.StreamReader) -> bytes:
    parts = list[bytes]()
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(65536):
            parts.append(part)
    return b"".join(parts)
