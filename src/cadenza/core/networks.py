"""Which networks an address belongs to, for limits. An IPv4 address that is mapped into IPv6 is the IPv4 address."""

from ipaddress import IPv4Address, IPv6Address, ip_address

TEXT_CHARS_MAX = 64
IPV4_NETWORKS = {32: 1, 24: 4}  # the bits of a prefix, and how much more than one subscriber its network is allowed
IPV6_NETWORKS = {64: 1, 56: 2, 48: 4}  # one subscriber has a /64 or more


def networks_of(address: str) -> dict[str, int]:
    """The networks of an address, the widest last: each with the multiple that it is allowed. Other text is cut."""
    parsed = _parse(address)
    if parsed is None:
        return {address[:TEXT_CHARS_MAX]: 1}
    networks = IPV6_NETWORKS if isinstance(parsed, IPv6Address) else IPV4_NETWORKS
    return {_prefix(parsed, bits): factor for bits, factor in networks.items()}


def _parse(address: str) -> IPv4Address | IPv6Address | None:
    try:
        parsed = ip_address(address)
    except ValueError:
        return None
    return (parsed.ipv4_mapped or parsed) if isinstance(parsed, IPv6Address) else parsed


def _prefix(address: IPv4Address | IPv6Address, bits: int) -> str:
    return f"{int(address) >> (address.max_prefixlen - bits):x}/{bits}"
