"""A small pooled HTTP/1.1 client on asyncio and httptools, for upstreams only.

It is ours because closing matters more than anything else here: leaving the `async with`, at any moment from the first
byte of the request to the last of the reply, closes the connection at once, which is what stops an upstream from
generating. Nothing is read ahead of the reader beyond a bounded buffer. TLS is verified by the system's certificates.
"""

import asyncio
import base64
import math
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import cast
from urllib.parse import unquote, urlsplit

import httptools

HEAD_BYTES_MAX = 64 * 1024
TUNNEL_HEAD_BYTES_MAX = 8 * 1024
BUFFER_BYTES_MAX = 256 * 1024
IDLE_S_MAX = 30.0  # a connection idle for longer may have been closed at the other end


class Unreachable(Exception):
    """No connection could be made: name, network, TLS or proxy."""


class Broken(Exception):
    """The connection ended, or what came was not HTTP."""


class Unanswered(Broken):
    """The connection ended before a single byte of an answer."""


class Connection(asyncio.Protocol):
    """One connection, one exchange at a time; while it lasts, it is the response."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._until_s = math.inf
        self._sink: Callable[[bytes], float] | None = None
        self._is_lost = False  # nothing more will come, or nothing that can be used
        self._is_gone = False  # the transport is closed
        self._is_complete = True
        self._keeps_alive = True
        self._idle_since_s = 0.0

    async def exchange(self, request: bytes, until_s: float = math.inf) -> None:
        """Send a request and wait for the head of its response; TimeoutError after that moment.

        Whatever goes wrong, the connection is closed.
        """
        self.status, self.headers = 0, {}
        self._body: list[bytes] = []
        self._buffered_bytes = 0
        self._is_answered = False
        self._head_bytes = 0
        self._bodiless_bytes = 0  # since the last byte of body: heads, trailers and chunk sizes are bounded
        self._is_complete = self._keeps_alive = False
        self._transport.write(request)
        try:
            while not self.status:
                await self._wait(until_s)
        except BaseException:
            self.abort()
            raise

    async def read(self, until_s: float = math.inf, sink: Callable[[bytes], float] | None = None) -> bytes | None:
        """What has come of the body since the last read; None at its end; TimeoutError after that moment.

        While it waits, what comes is given to `sink` first: it takes it and says how long to wait for more, or 0.
        """
        while not self._body:
            if self._is_complete:
                return None
            self._sink = sink
            try:
                await self._wait(until_s)
            finally:
                self._sink = None
        data = b"".join(self._body)
        self._body.clear()
        if self._buffered_bytes > BUFFER_BYTES_MAX and not self._is_lost:
            self._transport.resume_reading()
        self._buffered_bytes = 0
        return data

    def is_usable(self) -> bool:
        is_fresh = self._loop.time() - self._idle_since_s < IDLE_S_MAX
        return is_fresh and not self._is_lost and not self._transport.is_closing()

    def end(self) -> bool:
        """The exchange is over, whole or not. True if another may follow; otherwise the connection is closed."""
        self._idle_since_s = self._loop.time()
        is_whole = self._is_complete and self._keeps_alive and not self._body and not self._is_lost
        if is_whole and not self._transport.get_write_buffer_size():
            return True
        self.abort()
        return False

    def abort(self) -> None:
        if not self._is_gone:  # a secure transport cannot be aborted twice
            self._transport.abort()

    async def _wait(self, until_s: float) -> None:
        if self._is_lost:
            raise Broken if self._is_answered else Unanswered
        self._watch_clock(until_s)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _watch_clock(self, until_s: float) -> None:
        """One timer for a connection, moved only where it would go off too late: 9 µs a read less than a timeout."""
        self._until_s = until_s
        if self._timer and self._timer.when() > until_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and until_s < math.inf:
            self._timer = self._loop.call_at(until_s, self._look_at_clock)

    def _look_at_clock(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() >= self._until_s:
            self._waiter.set_exception(TimeoutError())
        else:
            self._watch_clock(self._until_s)

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._is_complete:  # nothing was asked
            self.abort()
            return
        self._is_answered = True
        self._bodiless_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._is_lost = True
            self.abort()
        if self._bodiless_bytes > HEAD_BYTES_MAX:
            self._is_lost = True
            self.abort()
        if self._body or self._is_complete or self._is_lost or self._sink is None:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = self._is_gone = True
        if self._timer:
            self._timer.cancel()
        if self.status and exc is None and not {b"content-length", b"transfer-encoding"} & self.headers.keys():
            self._is_complete = True  # such a body ends with its connection
        self._wake()

    def on_message_begin(self) -> None:
        if self.status:
            raise Broken  # a second answer to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_BYTES_MAX:
            raise Broken
        if not self.status:  # trailers are not for us
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # an interim response: the real one follows
            self.headers = {}
        else:
            self.status = status

    def on_body(self, data: bytes) -> None:
        self._bodiless_bytes = 0
        if self._sink and not self._body and (until_s := self._sink(data)):
            self._until_s = until_s
            return
        self._body.append(data)
        was_full = self._buffered_bytes > BUFFER_BYTES_MAX
        self._buffered_bytes += len(data)
        if self._buffered_bytes > BUFFER_BYTES_MAX and not was_full:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.status:
            self._is_complete = True
            self._keeps_alive = self._parser.should_keep_alive()


class HttpClient:
    """A pool of connections to one base address, straight or through an HTTP proxy."""

    def __init__(self, base_url: str, headers: Mapping[str, str], proxy: str | None = None) -> None:
        url = urlsplit(base_url)
        assert url.hostname
        self._host = url.hostname
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._path = url.path.rstrip("/")
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._proxy = urlsplit(proxy) if proxy else None
        self._idle: list[Connection] = []
        self._is_closed = False
        fields = {"host": url.netloc, "user-agent": "cadenza", "accept-encoding": "identity", **headers}
        if self._proxy and not self._tls:  # a plain proxy is asked by the whole address
            self._path = f"http://{url.netloc}{self._path}"
            fields |= _proxy_authorization(self._proxy.username, self._proxy.password)
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode()

    async def begin(
        self, method: str, path: str, body: bytes, connect_s: float, until_s: float = math.inf
    ) -> Connection:
        """A response whose head has come, by that moment; TimeoutError otherwise. Whoever gets it ends it.

        A kept connection that was closed meanwhile is no answer: then once more, on a new one.
        """
        first = f"{method} {self._path}{path} HTTP/1.1\r\n".encode()
        request = b"%b%bcontent-length: %d\r\n\r\n%b" % (first, self._fields, len(body), body)
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_usable():
                connection.abort()
                continue
            try:
                await connection.exchange(request, until_s)
            except Unanswered:
                break
            return connection
        connection = await self._connect(connect_s, until_s)
        await connection.exchange(request, until_s)
        return connection

    def end(self, connection: Connection) -> None:
        """Keep it for the next request if its response was read to the end, else close it at once."""
        if connection.end():
            self._idle.append(connection)
        if self._is_closed:
            self._close_idle()

    @asynccontextmanager
    async def request(self, method: str, path: str, body: bytes, connect_s: float) -> AsyncIterator[Connection]:
        connection = await self.begin(method, path, body, connect_s)
        try:
            yield connection
        finally:
            self.end(connection)

    async def close(self) -> None:
        """Ends the idle connections; those in use end with their exchange."""
        self._is_closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    async def _connect(self, connect_s: float, until_s: float) -> Connection:
        loop = asyncio.get_running_loop()
        host, port = self._host, self._port
        if self._proxy:
            assert self._proxy.hostname
            host, port = self._proxy.hostname, self._proxy.port or 80
        try:
            async with asyncio.timeout_at(min(until_s, loop.time() + connect_s)):
                if self._tls is None:
                    return (await loop.create_connection(Connection, host, port))[1]
                if self._proxy is None:
                    return (await loop.create_connection(Connection, host, port, ssl=self._tls))[1]
                return await self._connect_by_tunnel(loop, host, port)
        except (OSError, TimeoutError, UnicodeError) as error:
            if isinstance(error, TimeoutError) and loop.time() >= until_s:
                raise
            raise Unreachable from None

    async def _connect_by_tunnel(self, loop: asyncio.AbstractEventLoop, host: str, port: int) -> Connection:
        tunnel = await _dial(loop, host, port)
        try:
            await loop.sock_sendall(tunnel, self._connect_request())
            await _expect_tunnel(loop, tunnel)
            _, connection = await loop.create_connection(
                Connection, sock=tunnel, ssl=self._tls, server_hostname=self._host
            )
        except BaseException:
            tunnel.close()
            raise
        return connection

    def _connect_request(self) -> bytes:
        assert self._proxy
        where = f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"
        fields = {"host": where, **_proxy_authorization(self._proxy.username, self._proxy.password)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"CONNECT {where} HTTP/1.1\r\n{lines}\r\n".encode()


async def _dial(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """A bare connection, to the first address of the host that takes one."""
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        tunnel = socket.socket(family, kind, protocol)
        tunnel.setblocking(False)
        try:
            await loop.sock_connect(tunnel, address)
        except OSError:
            tunnel.close()
        except BaseException:
            tunnel.close()
            raise
        else:
            return tunnel
    raise ConnectionError


async def _expect_tunnel(loop: asyncio.AbstractEventLoop, tunnel: socket.socket) -> None:
    said = b""
    while not said.endswith(b"\r\n\r\n"):
        part = await loop.sock_recv(tunnel, 1)  # not a byte more than the proxy's own: the next ones are TLS
        said += part
        if not part or len(said) > TUNNEL_HEAD_BYTES_MAX:
            raise ConnectionError
    if said.split(None, 2)[1:2] != [b"200"]:
        raise ConnectionError


def _proxy_authorization(user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        return {}
    secret = base64.b64encode(f"{unquote(user)}:{unquote(password or '')}".encode()).decode()
    return {"proxy-authorization": f"Basic {secret}"}
