"""The client's address and scheme: forwarded headers count only if they come from a trusted proxy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.http.headers import HOPS_MAX, LOOPBACK, Headers, TrustedProxies, is_local, parse_address, plain_address

FORGED = "198.51.100.9"
REAL = "203.0.113.7"
REMOTE = [REAL, "10.0.0.1", "127.0.0.2", "127.0.0.1.example.org", "::2", "2001:db8::1", "localhost", ""]
USUAL = TrustedProxies()
NETWORKS = TrustedProxies(["10.1.0.0/16", "2001:db8:1::/48"])


def lines(value: bytes | None) -> Headers:
    return [] if value is None else [(b"x-forwarded-for", value)]


@pytest.mark.parametrize("peer", LOOPBACK)
@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        (b"203.0.113.7", REAL),
        (b" 203.0.113.7 ", REAL),
        (b"198.51.100.9, 203.0.113.7", REAL),
        (b"198.51.100.9,203.0.113.7", REAL),
        (b"127.0.0.1, ::1, 203.0.113.7", REAL),
        (b"203.0.113.7, 127.0.0.1, ::1", REAL),
        (b"203.0.113.7:51234", REAL),
        (b"::ffff:203.0.113.7", REAL),
        (b"2001:db8::1", "2001:db8::1"),
        (b"2001:DB8:0::1", "2001:db8::1"),
        (b"[2001:db8::1]:51234", "2001:db8::1"),
    ],
)
def test_the_address_that_a_trusted_proxy_forwards(peer: str, forwarded: bytes, address: str) -> None:
    """The last address that is not a trusted proxy's counts: a proxy added it, and a client may forge the others."""
    assert USUAL.client_address(peer, lines(forwarded)) == address


@pytest.mark.parametrize("hop", [b"127.0.0.1", b"::1"])
def test_a_chain_of_proxies_has_a_length(hop: bytes) -> None:
    """An address behind more trusted hops than a chain has is not read: the farthest proxy that was counts."""
    behind = [REAL.encode(), *[hop] * (HOPS_MAX - 1)]
    assert USUAL.client_address("::1", lines(b",".join(behind))) == REAL
    assert USUAL.client_address("::1", lines(b",".join([*behind, hop]))) == hop.decode()
    assert USUAL.client_address("::1", [(b"x-forwarded-for", one) for one in behind]) == REAL


@pytest.mark.parametrize("text", ["1" * 65, "[" + ":" * 70 + "]", "1." * 40, "::1%" + "a" * 70])
def test_a_long_text_is_no_address(text: str) -> None:
    """It is refused by its length, before it is taken apart."""
    assert parse_address(text) is None


@pytest.mark.parametrize("peer", LOOPBACK)
@pytest.mark.parametrize("forwarded", [b"unknown", b"203.0.113.7, _hidden", b"198.51.100.9, 1.2.3"])
def test_what_is_not_an_address_is_not_forwarded(peer: str, forwarded: bytes) -> None:
    """Then the proxy itself counts as the client, so that no text of a client becomes an address."""
    assert USUAL.client_address(peer, lines(forwarded)) == peer


@pytest.mark.parametrize("peer", REMOTE)
def test_a_remote_peer_cannot_forward(peer: str) -> None:
    """Forwarded headers of a peer that is not trusted are ignored."""
    assert USUAL.client_address(peer, lines(FORGED.encode())) == peer
    assert USUAL.scheme(peer, "http", b"https") == "http"


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("10.1.2.3", b"203.0.113.7", REAL),
        ("10.1.2.3", b"198.51.100.9, 203.0.113.7, 10.1.9.9", REAL),
        ("2001:db8:1::5", b"203.0.113.7", REAL),
        ("10.2.0.1", b"203.0.113.7", "10.2.0.1"),
        ("127.0.0.1", b"203.0.113.7", "127.0.0.1"),
    ],
)
def test_networks_are_trusted(peer: str, forwarded: bytes, address: str) -> None:
    """A proxy in a trusted network may forward; with a list of its own, this machine is not trusted by itself."""
    assert NETWORKS.client_address(peer, lines(forwarded)) == address


@pytest.mark.parametrize("peer", [*LOOPBACK, *REMOTE])
@pytest.mark.parametrize("nothing", [None, b""])
def test_nothing_forwarded(peer: str, nothing: bytes | None) -> None:
    """Without forwarded headers the peer is the client."""
    assert USUAL.client_address(peer, lines(nothing)) == peer
    assert [USUAL.scheme(peer, own, nothing) for own in ("http", "https")] == ["http", "https"]


@pytest.mark.parametrize("peer", LOOPBACK)
@pytest.mark.parametrize(
    ("forwarded", "expected"),
    [(b"https", "https"), (b"http", "http"), (b" HTTPS ", "https"), (b"javascript", "own"), (b"https, http", "own")],
)
def test_the_scheme_that_a_trusted_proxy_forwards(peer: str, forwarded: bytes, expected: str) -> None:
    """http and https are accepted in any case; any other value is ignored."""
    assert USUAL.scheme(peer, "own", forwarded) == expected


@given(st.sampled_from([*LOOPBACK, *REMOTE]), st.binary(max_size=40))
def test_any_bytes_are_read(peer: str, forwarded: bytes) -> None:
    """Any header value gives one of the two schemes, and the peer or a well-formed address."""
    assert USUAL.scheme(peer, "http", forwarded) in {"http", "https"}
    found = USUAL.client_address(peer, lines(forwarded))
    assert found == peer or str(parse_address(found)) == found


@pytest.mark.parametrize(
    ("peer", "address"),
    [("::ffff:127.0.0.1", "127.0.0.1"), ("::FFFF:7f00:1", "127.0.0.1"), ("::1", "::1"), (REAL, REAL), ("", "")],
)
def test_an_address_has_one_form(peer: str, address: str) -> None:
    """An IPv4 address that is mapped into IPv6 is the IPv4 address."""
    assert plain_address(peer) == address


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"])
def test_a_program_on_this_machine_is_local(peer: str) -> None:
    """A request from loopback without a mark of a proxy is local."""
    assert is_local(peer, [(b"host", b"127.0.0.1"), (b"user-agent", b"Prometheus/3.0")])


@pytest.mark.parametrize("peer", [REAL, "10.0.0.1", "::2", "localhost", ""])
def test_another_machine_is_not_local(peer: str) -> None:
    """No other address is local."""
    assert not is_local(peer, [])


@pytest.mark.parametrize(
    "name",
    [b"forwarded", b"via", b"x-real-ip", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"x-forwarded"],
)
def test_a_request_through_a_proxy_is_not_local(name: bytes) -> None:
    """Any header that a proxy adds tells that the request came through one, whatever its value."""
    assert not is_local("127.0.0.1", [(name, b"")])
