"""Which network a visitor comes from, for limits."""

from ipaddress import ip_address, ip_network


def network_of(address: str) -> str:
    """An IPv4 address, or the /64 network of an IPv6 address, which one client has for itself."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return address if parsed.version == 4 else str(ip_network(f"{address}/64", strict=False))
