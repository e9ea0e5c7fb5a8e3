"""One GET to a host that a stranger named, and the redirects that it answers with.

The name is resolved once, every address is checked, and the connection goes to a checked address. TLS and the Host
header keep the name. There are no cookies, credentials, referrers, proxies or kept connections. However an exchange
ends, its connection is closed. A proxy of the environment is not used, because it would resolve the name again, by
itself. Each redirect is a new request: its URL, name and addresses are checked like those of the first.

The body is bounded in bytes. It is asked for as it is, and refused if it comes compressed: there are no bombs.
"""

import asyncio
import socket
import ssl
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import version

import msgspec

from cadenza.core.content import Content
from cadenza.http.client_connection import Broken, ClientConnection, GuardedConnection
from cadenza.http.connecting import connect_to_first, in_turn, make_connection
from cadenza.parts.grounding.search.cache import CacheBounds
from cadenza.parts.grounding.search.pages.addresses import (
    Address,
    AddressRules,
    Resolve,
    Target,
    plain_address,
    redirect_target,
)
from cadenza.parts.grounding.search.records import FetchFailed

MIB = 1024 * 1024
IDENTITY = {b"", b"identity"}
ADDRESSES_TRIED = 3
SOCKETS = {4: socket.AF_INET, 6: socket.AF_INET6}
Headers = Mapping[bytes, bytes]

FIELDS = (
    f"user-agent: Cadenza/{version('cadenza')} (reads pages that a user asks about)\r\n"
    "accept: text/html,application/xhtml+xml,application/pdf,text/*;q=0.9,application/json;q=0.8,*/*;q=0.1\r\n"
    "accept-encoding: identity\r\n"
    "connection: close\r\n"
)
REDIRECTS = {301, 302, 303, 307, 308}
CheckTarget = Callable[[Target], Awaitable[None]]  # FetchFailed if the target must not be fetched


class FetchLimits(msgspec.Struct, frozen=True):
    """The limits of one page, and of all pages that one process fetches at a time."""

    connect_s: float = 1.5  # with the TLS handshake
    page_s: float = 4.0  # for everything: waiting, robots.txt, redirects and the body
    page_bytes: int = 2 * MIB  # of a body
    pdf_bytes: int = 8 * MIB
    redirects: int = 5
    at_once: int = 32  # in the whole process
    at_once_per_host: int = 4
    at_once_per_owner: int = 8  # pages, each with its redirects: slow pages of one account leave room for others
    held_bytes: int = 64 * MIB  # of all pages in memory: arriving, waiting to be read, and cached
    pages: CacheBounds = CacheBounds(age_s_max=600.0, entries_max=64, bytes_max=16 * MIB)
    robots: CacheBounds = CacheBounds(age_s_max=600.0, entries_max=256, bytes_max=4 * MIB)


class BodyLimit(msgspec.Struct, frozen=True):
    """How much of a body is read. A longer one is refused, or truncated if `truncates`."""

    bytes_max: int
    truncates: bool = False


NOTHING = BodyLimit(0, truncates=True)
Admit = Callable[[int, Headers], BodyLimit]  # by the status and headers; FetchFailed if the response is of no use


class ByteBudget:
    """Bounds the bytes of all bodies that are arriving and of all pages that are still in use, together."""

    def __init__(self, bytes_max: int) -> None:
        self._free = bytes_max

    def reserve(self, count: int) -> None:
        if count > self._free:
            raise FetchFailed("busy")
        self._free -= count

    def release(self, count: int) -> None:
        self._free += count

    def reserve_for(self, owner: object, count: int) -> None:
        """Reserve `count` bytes until `owner` is garbage-collected."""
        self.reserve(count)
        weakref.finalize(owner, self.release, count).atexit = False


class PageResponse(Content, msgspec.Struct, frozen=True):
    """The response of a host, with as much of its body as was wanted."""

    status: int
    headers: Headers
    body: bytes


class PageClient:
    """Makes the requests, a bounded number at once in all and for each host."""

    def __init__(self, limits: FetchLimits, rules: AddressRules, resolve: Resolve) -> None:
        self._limits = limits
        self._rules = rules
        self._resolve = resolve
        self._slots = asyncio.Semaphore(limits.at_once)
        self._slots_of_hosts: weakref.WeakValueDictionary[str, asyncio.Semaphore] = weakref.WeakValueDictionary()
        self.budget = ByteBudget(limits.held_bytes)
        self._tls: ssl.SSLContext | None = None

    async def get(self, target: Target, admit: Admit) -> PageResponse:
        """FetchFailed if there is no response, or none that is admitted."""
        of_host = self._slots_of_hosts.setdefault(target.host, asyncio.Semaphore(self._limits.at_once_per_host))
        async with of_host, self._slots:
            connection = await self._connect(target, await self._checked_addresses(target))
            try:
                request = f"GET {target.path} HTTP/1.1\r\nhost: {target.authority}\r\n{FIELDS}\r\n"
                await connection.send(request.encode())
                limit = admit(connection.status, connection.headers)
                return PageResponse(connection.status, connection.headers, await self._read(connection, limit))
            except Broken:
                raise FetchFailed("broken") from None
            finally:
                connection.abort()

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
        places = [
            (SOCKETS[address.version], socket.SOCK_STREAM, 0, "", (str(address), target.port)) for address in addresses
        ]
        try:
            async with asyncio.timeout(self._limits.connect_s):
                connected = await connect_to_first(in_turn(places)[:ADDRESSES_TRIED])  # nothing is resolved here
                return await make_connection(GuardedConnection, connected, tls, target.host)
        except ssl.SSLError:
            raise FetchFailed("tls") from None
        except OSError:
            raise FetchFailed("unreachable") from None

    async def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:  # the certificates of the system take tens of milliseconds to load
            self._tls = await asyncio.to_thread(_load_tls)
        return self._tls

    async def _read(self, connection: ClientConnection, limit: BodyLimit) -> bytes:
        if not limit.bytes_max:
            return b""
        if connection.headers.get(b"content-encoding", b"").strip().lower() not in IDENTITY:
            raise FetchFailed("encoding")
        if int(connection.headers.get(b"content-length", b"0")) > limit.bytes_max and not limit.truncates:
            raise FetchFailed("too_large")
        return await self._receive(connection, limit)

    async def _receive(self, connection: ClientConnection, limit: BodyLimit) -> bytes:
        data = bytearray()

        def take(part: bytes) -> bool:
            """False if no more is wanted."""
            room = limit.bytes_max - len(data)
            if len(part) > room and not limit.truncates:
                raise FetchFailed("too_large")
            wanted = part[:room]
            self.budget.reserve(len(wanted))
            data.extend(wanted)
            return len(part) <= room

        try:
            await connection.receive(take)
            return bytes(data)
        finally:
            self.budget.release(len(data))


def _load_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


async def get_following(
    client: PageClient, target: Target, admit: Admit, redirects_max: int, check: CheckTarget | None = None
) -> tuple[Target, PageResponse]:
    """The first response that is not a redirect, and where it came from."""

    def admit_redirects(status: int, headers: Headers) -> BodyLimit:
        return NOTHING if status in REDIRECTS and b"location" in headers else admit(status, headers)

    for _ in range(redirects_max + 1):
        if check:
            await check(target)
        response = await client.get(target, admit_redirects)
        location = response.headers.get(b"location")
        if response.status not in REDIRECTS or location is None:
            return target, response
        target = redirect_target(target, location)
    raise FetchFailed("redirects")
