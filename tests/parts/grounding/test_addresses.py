"""Which addresses may be reached for a stranger."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.parts.grounding.search.pages.addresses import Address, AddressRules, plain_address
from cadenza.parts.grounding.search.records import FetchFailed

PRIVATE_V4 = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "100.127.255.255",
    "127.0.0.1", "127.255.255.254", "168.63.129.16", "169.254.169.254", "169.254.170.2", "172.16.0.1",
    "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1",
    "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
]  # fmt: skip
PRIVATE_V6 = [
    "::", "::1", "::2", "::127.0.0.1", "::8.8.8.8", "::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8", "64:ff9b::127.0.0.1",
    "64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b:1::1", "64:ff9b:1::8.8.8.8", "100::1", "2001::1",
    "2001:0:808:808::1", "2001:2::1", "2001:10::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::1",
    "3fff::1", "4000::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fd20:ce::254", "fe80::1", "fec0::1", "ff02::1",
    "ff0e::1",
]  # fmt: skip
PUBLIC = [
    "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.1",
    "169.253.255.255", "172.15.255.255", "172.32.0.0", "192.0.1.1", "192.167.255.255", "198.17.255.255", "198.20.0.0",
    "223.255.255.255", "2001:4860:4860::8888", "2606:4700:4700::1111", "2a00:1450::1", "64:ff9b::8.8.8.8",
]  # fmt: skip


def reason(address: str | Address, port: int = 443, *allowed: str) -> str | None:
    """Why the address may not be reached; None if it may."""
    try:
        AddressRules([ip_network(network) for network in allowed]).check(ip_address(address), port)
    except FetchFailed as failed:
        return failed.reason
    return None


@pytest.mark.parametrize("address", PRIVATE_V4 + PRIVATE_V6)
def test_an_address_that_is_not_public(address: str) -> None:
    """Private, loopback, link-local, metadata, shared, reserved, documentation and transition addresses are refused."""
    assert reason(address) == "private"


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address(address: str) -> None:
    """A public address is reached, also next to the end of a private block and behind NAT64."""
    assert reason(address) is None


@pytest.mark.parametrize("address", PRIVATE_V4)
def test_a_private_address_in_an_ipv4_mapped_one(address: str) -> None:
    """An IPv4-mapped address is judged by the IPv4 address that it reaches."""
    mapped = IPv6Address(f"::ffff:{address}")
    assert plain_address(mapped) == IPv4Address(address)
    assert reason(mapped) == reason(plain_address(mapped)) == "private"


@pytest.mark.parametrize("port", [0, 22, 25, 79, 81, 442, 444, 3306, 6379, 8080, 8443, 65535])
def test_a_port_that_is_not_one_of_the_web(port: int) -> None:
    """Only ports 80 and 443 of a public address are reached."""
    assert reason("8.8.8.8", port) == "port"
    assert reason("8.8.8.8", 80) is None


def test_an_allowed_network() -> None:
    """An allowed network is reached on any port, and its neighbours are not."""
    assert reason("10.1.2.3", 8080, "10.1.0.0/16") is None
    assert reason("10.2.0.1", 80, "10.1.0.0/16") == "private"
    assert reason("fd12::1", 8080, "fd12::/16") is None
    assert reason("64:ff9b::10.1.2.3", 8080, "10.1.0.0/16") is None
    assert reason("8.8.8.8", 8080, "10.1.0.0/16") == "port"


ALL = ("0.0.0.0/0", "::/0")


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "0.0.0.0", "::", "169.254.169.254", "fe80::1", "fd00:ec2::254", "fd20:ce::254", "224.0.0.1",
     "255.255.255.255", "ff02::1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "64:ff9b::127.0.0.1",
     "2002:7f00:1::", "::127.0.0.1", "::ffff:127.0.0.1"],
)  # fmt: skip
def test_loopback_and_metadata_must_be_allowed_by_name(address: str) -> None:
    """A wide network does not allow loopback, link-local, metadata or multicast addresses inside it."""
    assert reason(address, 80, *ALL) == "private"


def test_loopback_that_is_allowed_by_name() -> None:
    """Loopback is reached if an allowed network lies within it, and only there."""
    assert reason("127.0.0.1", 8080, "127.0.0.1/32") is None
    assert reason("127.0.0.2", 8080, "127.0.0.1/32") == "private"
    assert reason("::1", 8080, "::1/128") is None
    assert reason("127.3.2.1", 8080, "127.0.0.0/8") is None


def every_form(inner: IPv4Address) -> list[Address]:
    """The IPv6 addresses that carry an IPv4 address, by the mechanisms that have been standards."""
    number = int(inner)
    return [
        IPv6Address((0xFFFF << 32) | number),  # mapped
        IPv6Address(number),  # compatible
        IPv6Address((0xFFFF << 48) | number),  # translated
        IPv6Address((0x64FF9B << 96) | number),  # NAT64
        IPv6Address((0x64FF9B0001 << 80) | number),  # NAT64 of one network
        IPv6Address((0x2002 << 112) | (number << 80) | 1),  # 6to4
        IPv6Address((0x20010000 << 96) | (number << 64)),  # Teredo: the server
        IPv6Address((0x20010000 << 96) | (0x08080808 << 64) | (number ^ 0xFFFFFFFF)),  # Teredo: the client
        IPv6Address((0x2A00 << 112) | (0x00005EFE << 32) | number),  # ISATAP
        IPv6Address((0x2A00 << 112) | (0x02005EFE << 32) | number),
    ]


SPECIAL_V4 = st.sampled_from(PRIVATE_V4).flatmap(lambda text: near(IPv4Network(f"{text}/20", strict=False)))


def near(network: IPv4Network | IPv6Network) -> st.SearchStrategy[Address]:
    return st.ip_addresses(network=str(network))


@given(st.ip_addresses(v=4) | SPECIAL_V4)
def test_ipv4_by_the_standard_library(address: Address) -> None:
    """Every IPv4 address that is reached is a global unicast address to Python's own tables too, and the reverse."""
    assert isinstance(address, IPv4Address)
    special = {IPv4Network("168.63.129.16/32"), IPv4Network("192.0.0.0/24"), IPv4Network("192.88.99.0/24")}
    is_ordinary = not any(address in network for network in special)
    is_global = address.is_global and not address.is_multicast and not address.is_reserved and is_ordinary
    assert (reason(address) is None) == is_global


@given(st.ip_addresses(v=6) | st.sampled_from(PRIVATE_V6).flatmap(lambda a: near(IPv6Network(f"{a}/28", strict=False))))
def test_ipv6_by_the_standard_library(address: Address) -> None:
    """Every IPv6 address that is reached is a global unicast address to Python's own tables too."""
    assert isinstance(address, IPv6Address)
    if reason(address) is None:
        assert address.is_global
        flags = (address.is_private, address.is_multicast, address.is_link_local, address.is_site_local)
        assert not any((*flags, address.is_loopback, address.is_unspecified, address.sixtofour, address.teredo))


@given(SPECIAL_V4)
def test_no_form_of_a_private_address_is_reached(inner: Address) -> None:
    """An IPv4 address that is refused is refused in every IPv6 address that carries it."""
    assert isinstance(inner, IPv4Address)
    if reason(inner):
        assert {reason(form) for form in every_form(inner)} == {"private"}
