"""The client's address and scheme: forwarded headers count only if they come from a proxy on this machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.http.forwarded import LOOPBACK, client_address, scheme

FORGED = "198.51.100.9"
REAL = "203.0.113.7"
REMOTE = [REAL, "10.0.0.1", "127.0.0.2", "127.0.0.1.example.org", "::2", "2001:db8::1", "localhost", ""]


def lines(value: bytes | None) -> list[tuple[bytes, bytes]]:
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
        (b"2001:db8::1", "2001:db8::1"),
    ],
)
def test_the_address_that_a_local_proxy_forwards(peer: str, forwarded: bytes, address: str) -> None:
    """The last address that is not this machine's counts: the proxy added it, and a client may forge the others."""
    assert client_address(peer, lines(forwarded)) == address


@pytest.mark.parametrize("peer", REMOTE)
def test_a_remote_peer_cannot_forward(peer: str) -> None:
    """Forwarded headers of a remote peer are ignored."""
    assert client_address(peer, lines(FORGED.encode())) == peer
    assert scheme(peer, "http", b"https") == "http"


@pytest.mark.parametrize("peer", [*LOOPBACK, *REMOTE])
@pytest.mark.parametrize("nothing", [None, b""])
def test_nothing_forwarded(peer: str, nothing: bytes | None) -> None:
    """Without forwarded headers the peer is the client."""
    assert client_address(peer, lines(nothing)) == peer
    assert [scheme(peer, own, nothing) for own in ("http", "https")] == ["http", "https"]


@pytest.mark.parametrize("values", [[REAL], [f"{FORGED}, {REAL}"], [FORGED, REAL]], ids=["one", "appended", "second"])
def test_a_proxy_may_append_or_add_a_header(values: list[str]) -> None:
    """A proxy may append to the header that a client forged, or add one more: its own address is the last."""
    headers = [(b"x-forwarded-for", value.encode()) for value in values]
    assert client_address(LOOPBACK[0], headers) == REAL


@pytest.mark.parametrize("peer", LOOPBACK)
@pytest.mark.parametrize(
    ("forwarded", "expected"),
    [(b"https", "https"), (b"http", "http"), (b" HTTPS ", "https"), (b"javascript", "own"), (b"https, http", "own")],
)
def test_the_scheme_that_a_local_proxy_forwards(peer: str, forwarded: bytes, expected: str) -> None:
    """http and https are accepted in any case; any other value is ignored."""
    assert scheme(peer, "own", forwarded) == expected


@given(st.sampled_from([*LOOPBACK, *REMOTE]), st.binary(max_size=40))
def test_any_bytes_are_read(peer: str, forwarded: bytes) -> None:
    """Any header value gives one of the two schemes and a single address."""
    assert scheme(peer, "http", forwarded) in {"http", "https"}
    found = client_address(peer, lines(forwarded))
    assert "," not in found
    assert found == found.strip()
