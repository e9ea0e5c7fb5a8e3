"""Which networks an address belongs to."""

import pytest

from cadenza.core.networks import networks_of


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("2001:db8::1", "not an address", False),
    ],
)
def test_the_network_of_an_address(one: str, other: str, is_same: bool) -> None:
    """An IPv4 address is its own network, also when it is mapped into IPv6; of IPv6 it is the /64."""
    assert (next(iter(networks_of(one))) == next(iter(networks_of(other)))) is is_same


def test_a_long_text_is_remembered_in_little_memory() -> None:
    """A forwarded text that is not an address is cut, because the table has a place for each."""
    assert networks_of("x" * 60_000) == {"x" * 64: 1}


def test_wider_networks_are_named_by_their_prefix() -> None:
    """IPv6 has /64, /56 and /48, and IPv4 the address and its /24: each with how much more it is allowed."""
    assert networks_of("2001:db8:1:2345::9") == {"20010db800012345/64": 1, "20010db8000123/56": 2, "20010db80001/48": 4}
    assert networks_of("::ffff:192.0.2.1") == networks_of("192.0.2.1") == {"c0000201/32": 1, "c00002/24": 4}
    assert networks_of("2001:db8:1:23ff::").keys() & networks_of("2001:db8:1:2345::9").keys() == {
        "20010db8000123/56",
        "20010db80001/48",
    }
