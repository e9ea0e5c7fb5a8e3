"""A URL that strangers name, taken apart by strict rules: what several programs could read differently is refused."""

import re
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import quote, urljoin, urlsplit

import idna
import msgspec

from cadenza.grounding.search.pages.addresses import Address
from cadenza.grounding.search.records import FetchFailed

URL_CHARS_MAX = 4096
HOST_CHARS_MAX = 253
PORTS = {"http": 80, "https": 443}
CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")  # the backslash is a slash to browsers
HOST = re.compile(r"(?:(?!-)[a-z0-9_-]{1,63}(?<!-)\.)*(?!-)[a-z0-9_-]{1,63}(?<!-)")
NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
KEPT = "%/:@!$&'()*+,;=~?"  # characters that stand for themselves in a path or query


class Target(msgspec.Struct, frozen=True):
    """Where a page is. `literal` is set where the host is an address; otherwise it is a name in ASCII."""

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
        path = quote((parts.path or "/") + query, safe=KEPT)
    except ValueError:  # brackets, a port that is not a number, characters that have no encoding
        raise FetchFailed("refused") from None
    return Target(parts.scheme, host, port, path, literal)


def redirect_target(target: Target, location: bytes) -> Target:
    """Where a redirect leads; FetchFailed if it must not be followed."""
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
