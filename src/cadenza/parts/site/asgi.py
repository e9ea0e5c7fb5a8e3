"""Runs an ASGI application, the pages, on our own server. The API does not pass through here.

The application is loaded when the first request for it comes, in a thread, so that a service without visitors never
imports it. The body of a request is read
whole before the application sees it, bounded in size, time and memory. Of one that is too large the application is
told, to say so in its own way, and it gets nothing of it. An application that fails gives a 500, and the
log gets the places in the code, never the text.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from cadenza.core.networks import networks_of
from cadenza.http.body import BodyMemory, BodyMemoryFull, BodyTimeout, BodyTooLarge
from cadenza.http.exchange import BODILESS, PENDING, STREAMING, Exchange
from cadenza.http.headers import encode_headers
from cadenza.observe import Log, places

KIB = 1024
BODY_BYTES_MAX = 64 * KIB
ALL_BODIES_BYTES_MAX = 16 * KIB * KIB
FRAMING = frozenset({b"content-length", b"transfer-encoding", b"connection"})  # headers of the server's own
TEXT = b"content-type: text/plain; charset=utf-8\r\nx-content-type-options: nosniff\r\n"
TOO_SLOW = b"The form did not arrive in time.\n"
TOO_BUSY = b"The service is busy. Try again shortly.\n"
BROKEN = b"Something went wrong on our side. Try again; if it happens again, tell the operator the time.\n"

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Message, Receive, Send], Awaitable[None]]


class AsgiAdapter:
    """Serves exchanges by one ASGI application."""

    def __init__(self, load: Callable[[], AsgiApp], log: Log) -> None:
        self._load = load
        self._log = log
        self._loading: asyncio.Task[AsgiApp] | None = None
        self._memory = PageMemory(ALL_BODIES_BYTES_MAX)

    async def serve(self, exchange: Exchange) -> None:
        try:
            await self._serve(exchange)
        except BodyTimeout:
            _fail(exchange, 408, TOO_SLOW)
        except BodyMemoryFull:
            _fail(exchange, 503, TOO_BUSY)
        except asyncio.CancelledError:
            if exchange.absorb_cancellation() is None:
                raise
        except Exception as error:  # noqa: BLE001 the request edge: the client gets an answer to any error
            self._log.error("internal error", endpoint="pages", places=places(error))
            if exchange.state is STREAMING:
                raise ConnectionAbortedError from None  # the reply must not seem complete
            _fail(exchange, 500, BROKEN)
        finally:
            exchange.body.release()

    async def _serve(self, exchange: Exchange) -> None:
        address = exchange.client_address
        network = next(reversed(networks_of(address)))  # the widest
        body, is_too_large = b"", False
        try:
            body = bytes(await exchange.read_body(PageBody(self._memory, network)))
        except BodyTooLarge:
            is_too_large = True
        if self._loading is None:
            self._loading = asyncio.create_task(asyncio.to_thread(self._load))
        app = await asyncio.shield(self._loading)
        await app(_scope(exchange, address, is_too_large=is_too_large), _receive(body), AsgiReply(exchange).send)
        assert exchange.state not in (PENDING, STREAMING), "the application did not end its reply"


class PageMemory(BodyMemory):
    """The memory of all bodies, and how much of it each network has taken."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.taken_bytes: dict[str, int] = {}  # by network; nothing for those with none


class PageBody:
    """The memory of one body, which is small. A network may take as much as it leaves free, and always one body."""

    def __init__(self, memory: PageMemory, network: str) -> None:
        self._memory = memory
        self._network = network
        self._taken_bytes = 0

    def expect(self, size_bytes: int) -> None:
        if self._taken_bytes + size_bytes > BODY_BYTES_MAX:
            raise BodyTooLarge
        self._memory.expect(size_bytes)
        left_bytes = self._memory.free_bytes - size_bytes
        if self._memory.taken_bytes.get(self._network, 0) + size_bytes > max(BODY_BYTES_MAX, left_bytes):
            raise BodyMemoryFull

    def take(self, size_bytes: int) -> None:
        self.expect(size_bytes)
        self._memory.take(size_bytes)
        self._taken_bytes += size_bytes
        self._memory.taken_bytes[self._network] = self._memory.taken_bytes.get(self._network, 0) + size_bytes

    def release(self, _size_bytes: int) -> None:
        self._memory.release(self._taken_bytes)
        if left_bytes := self._memory.taken_bytes.pop(self._network, 0) - self._taken_bytes:
            self._memory.taken_bytes[self._network] = left_bytes
        self._taken_bytes = 0


class AsgiReply:
    """What the application sends. A body of one message is sent whole, one of several is streamed in chunks.

    The framing of the reply is the server's: what the application says about it is used only for HEAD, which has no
    body to measure.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._status = 500
        self._headers = b""
        self._length = b""  # as the application gives it
        self._is_whole = False  # sent, and the body that follows is left out: that of a HEAD request, a 204 or a 304

    async def send(self, message: Message) -> None:
        exchange = self._exchange
        if message["type"] == "http.response.start":
            self._start(message)
            return
        assert message["type"] == "http.response.body"
        data, has_more = message.get("body", b""), message.get("more_body", False)
        if self._is_whole:
            return
        if exchange.state is STREAMING:
            if not has_more:
                exchange.finish_stream(data)
            elif data:
                exchange.write(data)
                await exchange.drain()
        elif self._status in BODILESS:
            exchange.respond(self._status, self._headers, b"")
            self._is_whole = True
        elif exchange.request.method == "HEAD" and (has_more or self._length):
            exchange.respond_to_head(self._status, self._headers + self._length)
            self._is_whole = True
        elif not has_more:
            exchange.respond(self._status, self._headers, data)
            self._is_whole = True
        else:
            exchange.start_stream(self._headers, self._status)
            exchange.write(data)

    def _start(self, message: Message) -> None:
        given = [(name.lower(), value) for name, value in message["headers"]]
        kept = [field for field in given if field[0] not in FRAMING]
        self._status = message["status"]
        self._headers = encode_headers(kept)
        length = dict(given).get(b"content-length", b"")
        self._length = encode_headers([(b"content-length", length)]) if length.isdigit() else b""
        assert self._headers.count(b"\n") == self._headers.count(b"\r") == len(kept), "a header has a line break"


def _scope(exchange: Exchange, address: str, *, is_too_large: bool) -> Message:
    request = exchange.request
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.0" if request.is_http_1_0 else "1.1",
        "method": request.method,
        "scheme": exchange.scheme,
        "path": request.path,
        "raw_path": request.path.encode("latin-1", "replace"),
        "query_string": request.query,
        "root_path": "",
        "headers": list(request.fields),
        "client": (address, 0),
        "server": None,
        "state": {"is_too_large": is_too_large},
    }


def _receive(body: bytes) -> Receive:
    """The whole body, and then nothing: a client that leaves cancels the task."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    return receive


def _fail(exchange: Exchange, status: int, text: bytes) -> None:
    if exchange.state is PENDING:
        exchange.respond(status, TEXT, text)
