"""Who asked, where a proxy on this machine passes requests on: it is believed to say so, and nobody else is."""

from collections.abc import Iterable

LOOPBACK = ("127.0.0.1", "::1")


def client_address(peer: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The address of whoever made a request: each proxy adds the one that it was asked by, at the end."""
    if peer not in LOOPBACK:
        return peer
    said = ",".join(value.decode("latin-1") for name, value in headers if name == b"x-forwarded-for")
    through = [address.strip() for address in said.split(",") if address.strip()]
    return next((address for address in reversed(through) if address not in LOOPBACK), peer)


def scheme(peer: str, own: str, forwarded_proto: bytes | None) -> str:
    """What the client_address's own address begins with."""
    said = (forwarded_proto or b"").decode("latin-1").strip().lower()
    return said if peer in LOOPBACK and said in {"http", "https"} else own
