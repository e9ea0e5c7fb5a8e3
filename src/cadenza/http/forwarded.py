"""The client's address and scheme behind a proxy. Only a proxy on this machine is trusted to forward them."""

from collections.abc import Iterable

LOOPBACK = ("127.0.0.1", "::1")


def client_address(peer: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The last forwarded address that is not this machine's, since each proxy appends the address of its own client."""
    if peer not in LOOPBACK:
        return peer
    forwarded = ",".join(value.decode("latin-1") for name, value in headers if name == b"x-forwarded-for")
    addresses = [address.strip() for address in forwarded.split(",") if address.strip()]
    return next((address for address in reversed(addresses) if address not in LOOPBACK), peer)


def scheme(peer: str, own: str, forwarded_proto: bytes | None) -> str:
    """The scheme that the client uses: `own`, unless a proxy on this machine forwards another."""
    forwarded = (forwarded_proto or b"").decode("latin-1").strip().lower()
    return forwarded if peer in LOOPBACK and forwarded in {"http", "https"} else own
