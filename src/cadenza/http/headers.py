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
WITH_PORT = re.compile(r"(\d+\.\d+\.\d+\.\d+):\d+|\[([^\]]*)\](?::\d+)?")

Network = IPv4Network | IPv6Network


class TrustedProxies:
    """The proxies whose headers are believed: addresses and networks."""

    def __init__(self, networks: Iterable[str] = LOOPBACK) -> None:
        self._networks: list[Network] = [ip_network(network) for network in networks]

    def trusts(self, address: str) -> bool:
        parsed = parse_address(address)
        return parsed is not None and any(parsed in network for network in self._networks)

    def client_address(self, peer: str, headers: Headers) -> str:
        """The last address that is not a trusted proxy's, since each proxy appends the address of its own client."""
        values = [value.decode("latin-1") for name, value in headers if name == b"x-forwarded-for"]
        hops = [hop.strip() for value in values for hop in value.split(",") if hop.strip()]
        address = peer
        while hops and self.trusts(address):
            forwarded = parse_address(hops.pop())
            if forwarded is None:
                break
            address = str(forwarded)
        return address

    def has_forwarded(self, peer: str, headers: Headers) -> bool:
        """Whether the request came through a trusted proxy that left a mark."""
        return _is_forwarded(headers) and self.trusts(peer)

    def scheme(self, peer: str, own: str, forwarded_proto: bytes | None) -> str:
        """The scheme that the client uses: `own`, unless a trusted proxy forwards another."""
        forwarded = (forwarded_proto or b"").decode("latin-1").strip().lower()
        return forwarded if forwarded in {"http", "https"} and self.trusts(peer) else own


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """None for what is not an address. A port, which some proxies add, is left out."""
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
