"""Which networks an address belongs to, for limits. An IPv4 address that is mapped into IPv6 is the IPv4 address."""

from ipaddress import IPv4Address, IPv6Address, ip_address

TEXT_CHARS_MAX = 64
IPV4_WIDER = {24: 4}  # the bits of a prefix, and how much more than one address its network is allowed
IPV6_WIDER = {56: 2, 48: 4}
IPV6_BITS = 64  # the network of one subscriber


def network_of(address: str) -> str:
    """The address; for IPv6 the /64 network, which belongs to one subscriber. Other text is cut."""
    parsed = _parse(address) if ":" in address else None
    if parsed is None:
        return address[:TEXT_CHARS_MAX]
    return _prefix(parsed, IPV6_BITS) if isinstance(parsed, IPv6Address) else str(parsed)


def networks_of(address: str) -> dict[str, int]:
    """The network, and the wider ones that it is a part of: each with the multiple that it is allowed."""
    found = {network_of(address): 1}
    parsed = _parse(address)
    if parsed is not None:
        wider = IPV6_WIDER if isinstance(parsed, IPv6Address) else IPV4_WIDER
        found |= {_prefix(parsed, bits): factor for bits, factor in wider.items()}
    return found


def _parse(address: str) -> IPv4Address | IPv6Address | None:
    try:
        parsed = ip_address(address)
    except ValueError:
        return None
    return (parsed.ipv4_mapped or parsed) if isinstance(parsed, IPv6Address) else parsed


def _prefix(address: IPv4Address | IPv6Address, bits: int) -> str:
    return f"{int(address) >> (address.max_prefixlen - bits):x}/{bits}"
