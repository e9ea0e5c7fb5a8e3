"""Reads HTTP/1.1 requests from bytes, which may be split anywhere.

Bytes that are not body (heads, trailers, chunk sizes and their extensions) are bounded. For each request the receiver
is told of the head, of the parts of the body and of the end, in this order. Malformed bytes end the parsing for good.
"""

from typing import Protocol
from urllib.parse import unquote

import httptools

from cadenza.http.exchange import Request
from cadenza.http.headers import Headers, encode_headers

FRAMING = (b"content-length", b"transfer-encoding")


class Malformed(Exception):
    """The bytes are not HTTP, or a head is too large."""


class RequestReceiver(Protocol):
    """Takes what the parser has read."""

    def receive_head(self, request: Request, /, *, keep_alive: bool) -> None: ...

    def receive_body(self, data: bytes, /) -> None: ...

    def receive_end(self) -> None: ...


class RequestParser:
    """The parser of one connection."""

    def __init__(self, receiver: RequestReceiver, head_bytes_max: int) -> None:
        self.is_in_head = False  # a head has begun and is not complete
        self._receiver = receiver
        self._head_bytes_max = head_bytes_max
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._fields: Headers = []
        self._head_bytes = 0  # of the target and of header names and values, trailers included
        self._overhead_bytes = 0  # fed since the last progress
        self._has_progressed = False  # the last feed completed a head or a request, or had a part of a body

    def feed(self, data: bytes) -> None:
        self._has_progressed = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._read_body_only(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            raise Malformed from None
        if not self._has_progressed:
            self._overhead_bytes += len(data)
            if self._overhead_bytes > self._head_bytes_max:
                raise Malformed

    def _read_body_only(self, rest: bytes) -> None:
        """Read the body of a request that asks for an upgrade, which is not granted.

        httptools takes the bytes behind such a head for another protocol. A new parser is told how the body is framed.
        """
        self._parser = httptools.HttpRequestParser(_BodyCallbacks(self))
        framing = encode_headers([field for field in self._fields if field[0] in FRAMING])
        self.feed(b"POST / HTTP/1.1\r\n%b\r\n%b" % (framing, rest))

    # httptools' callbacks. It turns an exception into an HttpParserError.

    def on_message_begin(self) -> None:
        self.is_in_head = True
        self._overhead_bytes = self._head_bytes = 0
        self._target = b""
        self._fields = []

    def on_url(self, url: bytes) -> None:
        self._target += url
        self._head_bytes += len(url)
        if self._head_bytes > self._head_bytes_max:
            raise Malformed

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._head_bytes_max:
            raise Malformed
        if self.is_in_head:  # trailers are not kept
            self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.is_in_head = False
        self._has_progressed = True
        parser = self._parser
        path, query = _split_target(self._target)
        is_http_1_0 = parser.get_http_version() == "1.0"
        request = Request(parser.get_method().decode(), path, query, self._fields, is_http_1_0=is_http_1_0)
        keep_alive = parser.should_keep_alive() and not parser.should_upgrade()
        self._receiver.receive_head(request, keep_alive=keep_alive)

    def on_body(self, data: bytes) -> None:
        self._has_progressed = True
        self._overhead_bytes = 0
        self._receiver.receive_body(data)

    def on_message_complete(self) -> None:
        if not self._parser.should_upgrade():  # otherwise the body is still to be read
            self.end_request()

    def end_request(self) -> None:
        self._has_progressed = True
        self._receiver.receive_end()


class _BodyCallbacks:
    """The callbacks of a parser that reads a body only."""

    def __init__(self, parser: RequestParser) -> None:
        self.on_body = parser.on_body
        self.on_message_complete = parser.end_request


def _split_target(target: bytes) -> tuple[str, bytes]:
    """The path, decoded, and the query as it came; Malformed for a target without a path."""
    if target.startswith(b"/") and b"#" not in target:  # the usual form, which needs no parser
        path, _, query = target.partition(b"?")
    else:
        try:
            url = httptools.parse_url(target)
        except httptools.HttpParserInvalidURLError:
            raise Malformed from None
        path, query = url.path or b"/", url.query or b""
        if path == b"*":
            raise Malformed
    return unquote(path.decode("latin-1")) if b"%" in path else path.decode("latin-1"), query
