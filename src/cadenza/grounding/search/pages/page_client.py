"""One GET at a time to a host that a stranger named: the name is resolved once, every address is checked, and the
connection goes to an address that was checked. TLS and the Host header keep the name.

There are no cookies, credentials, referrers, proxies or kept connections. However an exchange ends, its connection is
closed. A proxy of the environment is not used, because it would resolve the name again, by itself.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

import msgspec

from cadenza.grounding.search.pages.addresses import Address, AddressRules, plain_address
from cadenza.grounding.search.pages.body import Allowance, Body, HeldBytes
from cadenza.grounding.search.pages.limits import FetchLimits
from cadenza.grounding.search.pages.resolver import Resolve
from cadenza.grounding.search.pages.target import Target
from cadenza.grounding.search.records import FetchFailed
from cadenza.http.client_connection import Broken, ClientConnection, GuardedConnection

ADDRESSES_TRIED = 3
Headers = Mapping[bytes, bytes]
Admit = Callable[[int, Headers], Allowance]  # by the status and headers; FetchFailed if the answer is of no use

FIELDS = (
    "accept: text/html,application/xhtml+xml,application/pdf,text/*;q=0.9,application/json;q=0.8,*/*;q=0.1\r\n"
    "accept-encoding: gzip, identity\r\n"
    "connection: close\r\n"
)


class Answer(msgspec.Struct, frozen=True):
    """What a host answered. The body is as much of it as was asked for."""

    status: int
    headers: Headers
    body: bytes


class PageClient:
    """Makes the requests, a bounded number at once in all and for each host."""

    def __init__(self, limits: FetchLimits, rules: AddressRules, resolve: Resolve, user_agent: str) -> None:
        self._limits = limits
        self._rules = rules
        self._resolve = resolve
        self._fields = f"user-agent: {user_agent}\r\n{FIELDS}"
        self._places = asyncio.Semaphore(limits.at_once)
        self._places_of_hosts: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self.held = HeldBytes(limits.held_bytes)
        self._tls: ssl.SSLContext | None = None

    async def get(self, target: Target, admit: Admit) -> Answer:
        """FetchFailed if there is no answer, or none that is admitted."""
        async with self._place(target.host):
            connection = await self._connect(target, await self._checked_addresses(target))
            try:
                await connection.send(self._request(target))
                allowance = admit(connection.status, connection.headers)
                return Answer(connection.status, connection.headers, await self._read(connection, allowance))
            except Broken:
                raise FetchFailed("broken") from None
            finally:
                connection.abort()

    @asynccontextmanager
    async def _place(self, host: str) -> AsyncIterator[None]:
        of_host = self._places_of_hosts.setdefault(host, asyncio.Semaphore(self._limits.at_once_per_host))
        async with of_host, self._places:
            yield

    async def _checked_addresses(self, target: Target) -> Sequence[Address]:
        """All addresses of the host. If one of them may not be reached, none is."""
        found = [target.literal] if target.literal else await self._resolve(target.host)
        addresses = list(dict.fromkeys(map(plain_address, found)))
        if not addresses:
            raise FetchFailed("unresolved")
        for address in addresses:
            self._rules.check(address, target.port)
        return addresses

    async def _connect(self, target: Target, addresses: Sequence[Address]) -> ClientConnection:
        tls = await self._tls_context() if target.scheme == "https" else None
        loop = asyncio.get_running_loop()
        for address in addresses[:ADDRESSES_TRIED]:
            try:
                async with asyncio.timeout(self._limits.connect_s):
                    _, connection = await loop.create_connection(
                        GuardedConnection,
                        str(address),
                        target.port,
                        ssl=tls,
                        server_hostname=target.host if tls else None,
                        flags=socket.AI_NUMERICHOST,  # it is an address: nothing is resolved here
                    )
                    return connection
            except ssl.SSLError:
                raise FetchFailed("tls") from None
            except OSError:  # the next address may be up
                continue
        raise FetchFailed("unreachable")

    async def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:  # the certificates of the system take tens of milliseconds to load
            self._tls = await asyncio.to_thread(_load_tls)
        return self._tls

    def _request(self, target: Target) -> bytes:
        return f"GET {target.path} HTTP/1.1\r\nhost: {target.authority}\r\n{self._fields}\r\n".encode()

    async def _read(self, connection: ClientConnection, allowance: Allowance) -> bytes:
        if not allowance.bytes_max:
            return b""
        length = connection.headers.get(b"content-length", b"0")
        if int(length) > allowance.bytes_max and not allowance.cuts:
            raise FetchFailed("too_large")
        body = Body(allowance, connection.headers.get(b"content-encoding", b""), self.held)
        try:
            while await connection.receive(body.receive):
                while body.has_pending:
                    await asyncio.sleep(0)
                    body.decode_slice()
                if body.is_full:
                    return body.cut()
            return body.whole()
        finally:
            body.close()


def _load_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
