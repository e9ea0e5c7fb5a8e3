"""A small pooled HTTP/1.1 client for upstreams.

It is our own because closing matters most here: ending an exchange before its response is complete closes the
connection at once, at any moment, and this is what stops an upstream from generating. TLS is verified with the system's
certificates, or with `authorities` instead, in PEM.
"""

import asyncio
import errno
import math
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Literal
from urllib.parse import urlsplit

from cadenza.http.client_connection import ClientConnection, Pieces, Unanswered
from cadenza.http.connecting import closed_on_error, connect_to_first, look_up, make_connection
from cadenza.http.flow import timeout_at
from cadenza.http.tunnel import open_tunnel, proxy_authorization

OUT_OF = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}  # files, of the process or machine, and memory
PRUNE_S = 5.0  # how often idle connections are looked at

Reason = Literal["dns", "refused", "reset", "timed_out", "tls_expired", "tls_untrusted", "tls_name", "unreachable"]
CERTIFICATE_REASONS: dict[int, Reason] = {  # by OpenSSL's X509_V_ERR: not valid yet, expired, other name, other address
    9: "tls_expired",
    10: "tls_expired",
    62: "tls_name",
    64: "tls_name",
}


class Unreachable(Exception):
    """No connection could be made, and why. It has no text: that would show an address."""

    def __init__(self, reason: Reason = "unreachable") -> None:
        super().__init__()
        self.reason = reason


class OutOfResources(Unreachable):
    """No connection could be made because this process ran out of files or memory: the upstream is not at fault."""


class HttpClient:
    """A pool of connections, of one kind, to one base address, direct or through an HTTP proxy."""

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        proxy: str | None = None,
        kind: type[ClientConnection] = ClientConnection,
        authorities: str | None = None,
    ) -> None:
        url = urlsplit(base_url)
        assert url.hostname
        self._host = url.hostname
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._path = url.path.rstrip("/")
        self._tls = ssl.create_default_context(cadata=authorities) if url.scheme == "https" else None
        self._proxy = urlsplit(proxy) if proxy else None
        self._idle: list[ClientConnection] = []  # the one that is idle for longest first
        self._pruning: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._kind = kind
        self._family = 0  # of the address that answered last: it is tried first, so that only one connection waits
        fields = {"host": url.netloc, "user-agent": "cadenza", "accept-encoding": "identity", **headers}
        if self._proxy and not self._tls:  # without a tunnel, a proxy wants the whole address
            self._path = f"http://{url.netloc}{self._path}"
            fields |= proxy_authorization(self._proxy)
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode()

    def head(self, method: str, path: str, fields: bytes = b"") -> bytes:
        """The head of any number of requests, up to the length of their bodies. `fields` are further header lines."""
        return f"{method} {self._path}{path} HTTP/1.1\r\n".encode() + self._fields + fields + b"content-length: "

    async def send(
        self,
        head: bytes,
        body: bytes | Pieces,
        connect_s: float,
        deadline_s: float = math.inf,
        on_sent: Callable[[bool], None] = lambda _: None,
    ) -> ClientConnection:
        """The response, once its head has arrived; TimeoutError at the deadline. The caller must release it.

        A large body comes in pieces, which are not copied.

        A kept connection that the other end has closed meanwhile is no failure: the request goes out on a new one.
        `on_sent` gets True when the request is written to a connection, and False if it went to such a closed one.
        """
        pieces: Pieces = ()
        if isinstance(body, bytes):
            request = b"%b%d\r\n\r\n%b" % (head, len(body), body)
        else:
            pieces = body
            request = b"%b%d\r\n\r\n" % (head, sum(map(len, pieces)))
        connection = self._take_idle()
        while True:
            is_new = connection is None
            connection = connection or await self._connect(connect_s, deadline_s)
            on_sent(True)
            try:
                if pieces:
                    await connection.send_large(request, pieces, deadline_s)
                else:
                    await connection.send(request, deadline_s)
            except Unanswered:
                connection.abort()
                if is_new:
                    raise
                on_sent(False)
                connection = None
            except BaseException:
                connection.abort()
                raise
            else:
                return connection

    def _take_idle(self) -> ClientConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.abort()
        return None

    def release(self, connection: ClientConnection) -> None:
        """Keep it for the next request if its response was read to the end, else close it at once."""
        if connection.end_exchange():
            self._idle.append(connection)
            if self._pruning is None:
                self._pruning = asyncio.get_running_loop().call_later(PRUNE_S, self._prune)
        if self._is_closed:
            self._close_idle()

    @asynccontextmanager
    async def request(self, method: str, path: str, body: bytes, connect_s: float) -> AsyncIterator[ClientConnection]:
        connection = await self.send(self.head(method, path), body, connect_s)
        try:
            yield connection
        finally:
            self.release(connection)

    async def close(self) -> None:
        """Close the idle connections. Those in use close with their exchange."""
        self._is_closed = True
        self._close_idle()

    def _prune(self) -> None:
        """Close the connections that were idle for too long. As long as there are idle ones, look again later."""
        while self._idle and not self._idle[0].is_usable():
            self._idle.pop(0).abort()
        again = bool(self._idle)
        self._pruning = asyncio.get_running_loop().call_later(PRUNE_S, self._prune) if again else None

    def _close_idle(self) -> None:
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
        if self._pruning:
            self._pruning.cancel()
            self._pruning = None

    async def _connect(self, connect_s: float, deadline_s: float) -> ClientConnection:
        loop = asyncio.get_running_loop()
        connect_deadline_s = loop.time() + connect_s
        proxy = self._proxy
        late: Reason = "dns"
        try:
            async with timeout_at(min(deadline_s, connect_deadline_s)) as timeout:
                host, port = (proxy.hostname, proxy.port or 80) if proxy else (self._host, self._port)
                assert host
                addresses = await look_up(host, port)
                late = "timed_out"
                connected = await connect_to_first(sorted(addresses, key=lambda address: address[0] != self._family))
                self._family = connected.family
                if proxy and self._tls:
                    with closed_on_error(connected):
                        await open_tunnel(connected, proxy, self._host, self._port)
                return await make_connection(self._kind, connected, self._tls, self._host)
        except (OSError, UnicodeError) as error:
            if isinstance(error, OSError) and ran_out(error):
                raise OutOfResources from None
            if timeout.expired() and deadline_s <= connect_deadline_s:
                raise
            raise Unreachable(late if timeout.expired() else reason_of(error)) from None


def reason_of(error: OSError | UnicodeError) -> Reason:
    """Why a connection failed. A name that is no name cannot be encoded."""
    match error:
        case socket.gaierror() | UnicodeError():
            return "dns"
        case ssl.SSLCertVerificationError():
            return CERTIFICATE_REASONS.get(error.verify_code, "tls_untrusted")
        case ConnectionRefusedError():
            return "refused"
        case ConnectionResetError() | ConnectionAbortedError() | BrokenPipeError() | ssl.SSLEOFError():
            return "reset"
        case TimeoutError():
            return "timed_out"
        case _:
            return "unreachable"


def ran_out(error: OSError) -> bool:
    if error.errno in OUT_OF:
        return True
    return not isinstance(error, (ConnectionError, TimeoutError)) and _cannot_open_socket()


def _cannot_open_socket() -> bool:
    """A name that cannot be looked up for want of a file gives various errors, so try to open one."""
    try:
        socket.socket().close()
    except OSError as error:
        return error.errno in OUT_OF
    return False
