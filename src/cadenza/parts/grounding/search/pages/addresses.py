"""Where a page is fetched from: its URL, the addresses of its host, and whether they may be reached.

A URL is parsed by strict rules: what programs could read differently is refused. Only addresses of the public internet
are reached, on the ports of the web, and the networks that the operator allows. What is not known to be public is
refused. An IPv6 address that carries an IPv4 address is public only if both are. See IANA's registries of
special-purpose addresses.
"""

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import quote, urljoin, urlsplit

import idna
import msgspec

from cadenza.core.content import Content
from cadenza.parts.grounding.search.records import FetchFailed

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

WEB_PORTS = {80, 443}

NOT_PUBLIC_V4 = (
    IPv4Network("0.0.0.0/8"),  # this host: 0.0.0.0 reaches loopback
    IPv4Network("10.0.0.0/8"),
    IPv4Network("100.64.0.0/10"),  # behind the NAT of a provider
    IPv4Network("127.0.0.0/8"),
    IPv4Network("168.63.129.16/32"),  # the virtual machine's host at Azure
    IPv4Network("169.254.0.0/16"),  # link-local, and the metadata of most clouds
    IPv4Network("172.16.0.0/12"),
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.0.2.0/24"),  # documentation
    IPv4Network("192.88.99.0/24"),  # relays for 6to4
    IPv4Network("192.168.0.0/16"),
    IPv4Network("198.18.0.0/15"),  # benchmarks
    IPv4Network("198.51.100.0/24"),  # documentation
    IPv4Network("203.0.113.0/24"),  # documentation
    IPv4Network("224.0.0.0/4"),  # multicast
    IPv4Network("240.0.0.0/4"),  # reserved, and broadcast
)

UNICAST_V6 = IPv6Network("2000::/3")  # all that is assigned; other blocks are private, reserved or a form of IPv4
NOT_PUBLIC_V6 = (
    IPv6Network("2001::/23"),  # protocols, among them Teredo
    IPv6Network("2001:db8::/32"),  # documentation
    IPv6Network("2002::/16"),  # 6to4
    IPv6Network("3fff::/20"),  # documentation
)

TRANSLATED = IPv6Network("64:ff9b::/96")  # NAT64: how a network without IPv4 reaches the IPv4 internet
CARRIES_V4 = (
    TRANSLATED,
    IPv6Network("::/96"),  # IPv4-compatible
    IPv6Network("::ffff:0:0:0/96"),  # IPv4-translated
)

ISATAP = {0x00005EFE, 0x02005EFE}  # the third quarter of an address that ends with an IPv4 address

# Allowed only by a network within the block: 0.0.0.0/0 does not allow loopback.
GUARDED: tuple[Network, ...] = (
    IPv4Network("0.0.0.0/8"),
    IPv4Network("100.100.100.200/32"),  # metadata of Alibaba Cloud
    IPv4Network("127.0.0.0/8"),
    IPv4Network("168.63.129.16/32"),
    IPv4Network("169.254.0.0/16"),
    IPv4Network("192.0.0.192/32"),  # metadata of Oracle Cloud
    IPv4Network("224.0.0.0/3"),
    IPv6Network("::/127"),  # unspecified and loopback
    IPv6Network("fd00:ec2::/32"),  # metadata of AWS
    IPv6Network("fd20:ce::254/128"),  # metadata of Google Cloud
    IPv6Network("fe80::/10"),
    IPv6Network("ff00::/8"),
)

URL_CHARS_MAX = 4096
HOST_CHARS_MAX = 253
PORTS = {"http": 80, "https": 443}
CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")  # the backslash is a slash to browsers
HOST = re.compile(r"(?:(?!-)[a-z0-9_-]{1,63}(?<!-)\.)*(?!-)[a-z0-9_-]{1,63}(?<!-)")
NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
UNQUOTED = "%/:@!$&'()*+,;=~?"  # characters that a path or query has unquoted

Resolve = Callable[[str], Awaitable[Sequence[Address]]]

LOOKUPS_AT_ONCE = 64  # one that is never answered holds its slot for longer than its page is waited for


class Target(Content, msgspec.Struct, frozen=True):
    """The URL of a page. The host is a name in ASCII or, if `literal` is set, an address."""

    scheme: str
    host: str
    port: int
    path: str  # with the query, as it is sent
    literal: Address | None = None

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def url(self) -> str:
        return f"{self.origin}{self.path}"


def parse_target(url: str) -> Target:
    """FetchFailed if the URL is not one of a web page, or has credentials."""
    if len(url) > URL_CHARS_MAX or CONTROL.search(url):
        raise FetchFailed("refused")
    try:
        parts = urlsplit(url)
        if parts.scheme not in PORTS or not parts.hostname or "@" in parts.netloc:
            raise FetchFailed("refused")
        host, literal = _ipv6(parts.hostname) if "[" in parts.netloc else _host(parts.hostname)
        port = PORTS[parts.scheme] if parts.port is None else parts.port
        query = f"?{parts.query}" if parts.query else ""
        path = quote((parts.path or "/") + query, safe=UNQUOTED)
    except ValueError:  # brackets, a port that is not a number, characters that have no encoding
        raise FetchFailed("refused") from None
    return Target(parts.scheme, host, port, path, literal)


def redirect_target(target: Target, location: bytes) -> Target:
    """The target of a redirect; FetchFailed if it must not be followed."""
    try:
        led_to = parse_target(urljoin(target.url, location.decode()))
    except ValueError:
        raise FetchFailed("refused") from None
    if target.scheme == "https" and led_to.scheme == "http":
        raise FetchFailed("downgrade")
    return led_to


def _ipv6(given: str) -> tuple[str, Address]:
    address = IPv6Address(given)
    if address.scope_id:
        raise ValueError
    return str(address), address


def _host(given: str) -> tuple[str, Address | None]:
    """The host in ASCII and, where it is one, the address. ValueError if it is neither a name nor an address."""
    if len(given) > HOST_CHARS_MAX:
        raise ValueError
    host = given if given.isascii() else idna.encode(given, uts46=True).decode()
    host = host.lower().removesuffix(".")
    if len(host) > HOST_CHARS_MAX or not HOST.fullmatch(host):
        raise ValueError
    if NUMBER.fullmatch(host.rpartition(".")[2]):  # never a domain: other notations of IPv4 end here
        return host, IPv4Address(host)
    return host, None


class AddressRules:
    """The public internet, and the networks that the operator allows, on any port."""

    def __init__(self, allow_networks: Sequence[Network] = ()) -> None:
        self._allowed = tuple(allow_networks)

    def check(self, address: Address, port: int) -> None:
        """FetchFailed if the address or the port may not be reached."""
        parts = (address, *carried_addresses(address))
        if not all(is_public(part) or self._is_allowed(part) for part in parts):
            raise FetchFailed("private")
        if port not in WEB_PORTS and not any(map(self._is_allowed, parts)):
            raise FetchFailed("port")

    def _is_allowed(self, address: Address) -> bool:
        block = next((block for block in GUARDED if address in block), None)
        return any(address in network and _is_within(network, block) for network in self._allowed)


def plain_address(address: Address) -> Address:
    """An IPv4-mapped address as the IPv4 address that it reaches."""
    return getattr(address, "ipv4_mapped", None) or address


def carried_addresses(address: Address) -> list[IPv4Address]:
    """The IPv4 addresses inside an IPv6 address of a transition mechanism."""
    if isinstance(address, IPv4Address):
        return []
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    ends_with_v4 = int(address) >> 32 & 0xFFFFFFFF in ISATAP or any(address in network for network in CARRIES_V4)
    if ends_with_v4 and int(address) > 1:  # not :: and ::1
        found.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return [each for each in found if each is not None]


def is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in NOT_PUBLIC_V4)
    if address in TRANSLATED:  # public if the IPv4 address inside is
        return True
    return address in UNICAST_V6 and not any(address in network for network in NOT_PUBLIC_V6)


def _is_within(network: Network, block: Network | None) -> bool:
    if block is None:
        return True
    return network.version == block.version and network[0] in block and network[-1] in block


class SystemResolver:
    """Host names to addresses, by the system's resolver, in threads of its own, a bounded number at a time.

    A name server that never answers holds a thread for as long as the system waits. With the threads of the event loop,
    a stranger could so delay the names of upstreams. The threads are daemons: they do not delay the end of the process.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._free = asyncio.Semaphore(LOOKUPS_AT_ONCE)

    async def __call__(self, host: str) -> Sequence[Address]:
        """All addresses of the host; FetchFailed if there are none."""
        await self._free.acquire()
        found: asyncio.Future[Sequence[Address]] = self._loop.create_future()
        thread = threading.Thread(target=self._look_up, args=(host, found), name="page-names", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._free.release()
            raise FetchFailed("busy") from None
        addresses = await found
        if not addresses:
            raise FetchFailed("unresolved")
        return addresses

    def _look_up(self, host: str, found: asyncio.Future[Sequence[Address]]) -> None:
        addresses: list[Address] = []
        with contextlib.suppress(OSError, ValueError):
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            addresses = [ip_address(answer[4][0]) for answer in answers]
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._finish, found, addresses)

    def _finish(self, found: asyncio.Future[Sequence[Address]], addresses: Sequence[Address]) -> None:
        self._free.release()
        if not found.done():
            found.set_result(addresses)
