"""Which addresses may be reached on behalf of a stranger: those that belong to the public internet, on the ports of the
web, and the networks that the operator allows.

Everything that is not known to be public is refused. An IPv6 address that carries an IPv4 address is public only if
both are. See IANA's registries of special-purpose addresses.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from cadenza.grounding.search.records import FetchFailed

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

UNICAST_V6 = IPv6Network("2000::/3")  # all that is given out; the rest is private, reserved or a form of IPv4
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

# Allowed only by a network that lies within the block: 0.0.0.0/0 does not allow loopback.
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
