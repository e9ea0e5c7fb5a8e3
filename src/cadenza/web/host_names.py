"""Which host names a request for the probes and the metrics may name.

They trust the network that a request comes from, so a page of another site must not reach them by DNS rebinding: by a
name of its own that resolves to our address. The Host header of such a request has that name, and is refused. IP
addresses, names that no public registry assigns, the name of this machine and that of the site are allowed.
"""

import socket

from cadenza.http.headers import parse_address

PRIVATE_SUFFIXES = (".localhost", ".internal", ".svc", ".svc.cluster.local")


class HostNames:
    """The names of one service. `base_url` is the address of its site, where it is known."""

    def __init__(self, base_url: str | None = None) -> None:
        site = (base_url or "").partition("://")[2].partition("/")[0]
        self._own = {_name(site), socket.gethostname().lower()}

    def allow(self, host: bytes | None) -> bool:
        """Whether a Host header, which HTTP/1.0 may leave out, names this service."""
        text = (host or b"").decode("latin-1")
        name = _name(text)
        return (
            "." not in name or name.endswith(PRIVATE_SUFFIXES) or name in self._own or parse_address(text) is not None
        )


def _name(host: str) -> str:
    """Without the port, in lower case."""
    return host.partition(":")[0].rstrip(".").lower()
