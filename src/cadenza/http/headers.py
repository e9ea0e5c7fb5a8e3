"""Header fields as they stand on the wire, and those by which trusted proxies name the client's address and scheme.

Addresses have one form everywhere: an IPv4 address that is mapped into IPv6 (::ffff:127.0.0.1) is the IPv4 address.
"""

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Headers = list[tuple[bytes, bytes]]


def encode_headers(headers: Headers) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])


LOOPBACK = ("127.0.0.1", "::1")
FORWARDING = {b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"cf-connecting-ip"}
FORWARDING_PREFIX = b"x-forwarded"
HOPS_MAX = 16  # of a chain of trusted proxies
ADDRESS_CHARS_MAX = 64  # with a port
WITH_PORT = re.compile(r"(\d+\.\d+\.\d+\.\d+):\d+|\[([^\]]*)\](?::\d+)?")

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class TrustedProxies:
    """The proxies whose headers are believed: addresses and networks."""

    def __init__(self, networks: Iterable[str] = LOOPBACK) -> None:
        self._networks: list[Network] = [ip_network(network) for network in networks]

    def trusts(self, address: str) -> bool:
        return self._has(parse_address(address))

    def client_address(self, peer: str, headers: Headers) -> str:
        """The last address that is not a trusted proxy's, since each proxy appends the address of its own client.

        Only the last HOPS_MAX are read: a client may send any number of them itself.
        """
        values = [value for name, value in headers if name == b"x-forwarded-for"][-HOPS_MAX:]
        hops = b",".join(values).decode("latin-1").rsplit(",", HOPS_MAX)[-HOPS_MAX:]
        given = [hop.strip() for hop in hops if hop.strip()]
        address, parsed = peer, parse_address(peer)
        while given and self._has(parsed) and (parsed := parse_address(given.pop())):
            address = str(parsed)
        return address

    def has_forwarded(self, peer: str, headers: Headers) -> bool:
        """Whether the request came through a trusted proxy that left a mark."""
        return _is_forwarded(headers) and self.trusts(peer)

    def scheme(self, peer: str, own: str, forwarded_proto: bytes | None) -> str:
        """The scheme that the client uses: `own`, unless a trusted proxy forwards another."""
        forwarded = (forwarded_proto or b"").decode("latin-1").strip().lower()
        return forwarded if forwarded in {"http", "https"} and self.trusts(peer) else own

    def _has(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


def parse_address(text: str) -> Address | None:
    """None for what is not an address. A port, which some proxies add, is left out."""
    if len(text) > ADDRESS_CHARS_MAX:
        return None
    if found := WITH_PORT.fullmatch(text):
        text = found[1] or found[2]
    try:
        parsed = ip_address(text)
    except ValueError:
        return None
    return (parsed.ipv4_mapped or parsed) if isinstance(parsed, IPv6Address) else parsed


def plain_address(peer: str) -> str:
    """The address of a peer in its one form. An IPv4 address is in it already."""
    return str(parse_address(peer) or peer) if ":" in peer else peer


def is_local(peer: str, headers: Headers) -> bool:
    """Whether a program on this machine asks for itself: it comes from loopback, and no proxy has left a mark."""
    parsed = parse_address(peer)
    if parsed is None or not parsed.is_loopback:
        return False
    return not _is_forwarded(headers)


def _is_forwarded(headers: Headers) -> bool:
    return any(name in FORWARDING or name.startswith(FORWARDING_PREFIX) for name, _ in headers)
