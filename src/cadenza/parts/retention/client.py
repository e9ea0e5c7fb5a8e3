"""A client of the audited service: a program with a key, or a browser without scripts."""

import json
import re
from collections.abc import Mapping
from urllib.parse import urlencode

from cadenza.http.raw_client import RawReply, encode_request, send_bytes
from cadenza.parts.retention.canaries import Template

REPLY_S = 30.0
CSRF = re.compile(rb'data-csrf="([0-9a-f]*)"')
JSON, FORM = ({"content-type": f"application/{kind}"} for kind in ("json", "x-www-form-urlencoded"))


class CaseClient:
    """It keeps the cookies that it gets, and the CSRF token of the last page."""

    def __init__(self, key: str = "", port: int = 0) -> None:
        self.port = port
        self.cookies: dict[str, str] = {}
        self._csrf = ""
        self._key = key

    async def send(self, method: str, path: str, body: Template = b"", headers: Mapping[str, str] = JSON) -> RawReply:
        reply = await send_bytes(self.port, self.encode(method, path, body, headers), REPLY_S)
        if found := CSRF.search(reply.body):
            self._csrf = found[1].decode()
        for line in re.findall(rb"(?im)^set-cookie: (.*?)\r?$", reply.head):
            name, _, value = line.decode().partition(";")[0].partition("=")
            self.cookies[name] = value
        return reply

    def encode(self, method: str, path: str, body: Template, headers: Mapping[str, str] = JSON) -> bytes:
        """A request. A body that is neither bytes nor a form is sent as JSON."""
        if headers.get("content-type") == FORM["content-type"]:
            body = urlencode({"csrf": self._csrf, **body}).encode()
        elif not isinstance(body, bytes):
            body = json.dumps(body, ensure_ascii=False).encode()
        fields = {"host": f"127.0.0.1:{self.port}", "connection": "close", "content-length": str(len(body))}
        if self._key:
            fields["authorization"] = f"Bearer {self._key}"
        if self.cookies:
            fields["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            fields["x-cadenza-csrf"] = self._csrf
        return encode_request(method, path, {**fields, **headers}, body)
