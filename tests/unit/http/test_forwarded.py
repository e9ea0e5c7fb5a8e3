"""Who asked, and by which scheme: a proxy on this machine is believed, and nobody else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.http.forwarded import LOOPBACK, client_address, scheme
from tests.unit.gateway.clients import Client

FORGED = "198.51.100.9"
REAL = "203.0.113.7"
STRANGERS = [REAL, "10.0.0.1", "127.0.0.2", "127.0.0.1.example.org", "::2", "2001:db8::1", "localhost", ""]


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
def test_a_proxy_on_this_machine_says_who_asked(peer: str, forwarded: bytes, address: str) -> None:
    """Of the addresses that it passes on, the last is the one that it was asked by; those before it are hearsay."""
    assert client_address(peer, lines(forwarded)) == address


@pytest.mark.parametrize("peer", STRANGERS)
def test_a_stranger_does_not_say_who_asked(peer: str) -> None:
    """Whoever comes from elsewhere is who it is, whatever it says."""
    assert client_address(peer, lines(FORGED.encode())) == peer
    assert scheme(peer, "http", b"https") == "http"


@pytest.mark.parametrize("peer", [*LOOPBACK, *STRANGERS])
@pytest.mark.parametrize("nothing", [None, b""])
def test_without_a_word_the_peer_asked(peer: str, nothing: bytes | None) -> None:
    """Nothing passed on, nothing changed."""
    assert client_address(peer, lines(nothing)) == peer
    assert [scheme(peer, own, nothing) for own in ("http", "https")] == ["http", "https"]


@pytest.mark.parametrize("lines", [[REAL], [f"{FORGED}, {REAL}"], [FORGED, REAL]], ids=["one", "added to", "one more"])
def test_a_call_is_its_askers(lines: list[str]) -> None:
    """A proxy may add to the line that a client forged, or write one more below it: its own word is the last."""
    headers = [(b"x-forwarded-for", line.encode()) for line in lines]
    assert Client(LOOPBACK[0]).exchange(headers).address == REAL


@pytest.mark.parametrize("peer", LOOPBACK)
@pytest.mark.parametrize(
    ("said", "known"),
    [(b"https", "https"), (b"http", "http"), (b" HTTPS ", "https"), (b"javascript", "own"), (b"https, http", "own")],
)
def test_a_proxy_on_this_machine_says_the_scheme(peer: str, said: bytes, known: str) -> None:
    """One of the two schemes is taken, in any case; anything else is as if it were not there."""
    assert scheme(peer, "own", said) == known


@given(st.sampled_from([*LOOPBACK, *STRANGERS]), st.binary(max_size=40))
def test_any_bytes_are_read(peer: str, said: bytes) -> None:
    """Whatever stands in the headers, there is an answer, the scheme is one of two, and the address is one alone."""
    assert scheme(peer, "http", said) in {"http", "https"}
    found = client_address(peer, lines(said))
    assert "," not in found
    assert found == found.strip()
