"""Which host names the probes and the metrics are served under."""

import socket

import pytest

from cadenza.server.probes import HostNames


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:8080", "10.1.2.3:8080", "[::1]:8080", "[::1]", "localhost:8080", "LOCALHOST."),
        *("cadenza:8080", "cadenza.prod.svc:8080", "cadenza.prod.svc.cluster.local", "gateway.internal", ""),
        *("chat.example.org", "Chat.Example.org:443", "chat.example.org."),
    ],
)
def test_own_names_are_allowed(host: str) -> None:
    """Addresses, names that cannot be bought, and the host of the site: kubelet and Prometheus use such."""
    assert HostNames("https://chat.example.org/").allow(host.encode())


def test_the_name_of_the_machine_is_allowed() -> None:
    """Also a host that is left out, as HTTP/1.0 may."""
    assert HostNames().allow(socket.gethostname().encode())
    assert HostNames().allow(None)


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "a.local"),
        *("chat.example.org.evil.example", "xchat.example.org", "[evil.example]", "127.0.0.1.", "svc.example"),
    ],
)
def test_a_name_of_somebody_else_is_not(host: str) -> None:
    """A page elsewhere can make its own name lead to our address, but it cannot name another."""
    assert not HostNames("https://chat.example.org").allow(host.encode())
