"""Why no connection to a provider could be made: each reason is a kind of fault, with real sockets and certificates."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import trustme

from cadenza.core.records import Timeouts
from cadenza.upstreams.openai import OpenAIUpstream
from tests.fault.unreachable import Address, answer_plainly, reset, served_by, stay_silent, without_room
from tests.service import refusing_address
from tests.unit.http.raw_client import WAIT_S
from tests.unit.upstreams.asks import STREAMING, RecordingSink, deliver, route

LOCALHOST = "127.0.0.1"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
SHORT = Timeouts(connect_s=0.2, first_token_s=0.5, idle_s=5, total_s=10)
NOW = datetime.now(UTC)
AUTHORITY = trustme.CA()  # a key takes long to make: one for all tests


@contextmanager
def secure(certificate: trustme.LeafCert) -> Iterator[str]:
    """A server with this certificate, to which no request may be sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    read = list[bytes]()

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as wrapped:
            read.append(wrapped.recv(65_536))

    with served_by(serve, "https") as base_url:
        yield base_url
    assert not any(read)


def begin_and_reset(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.sendall(ANSWER)
    reset(connection)


@contextmanager
def by_name(certificate: trustme.LeafCert) -> Iterator[str]:
    with secure(certificate) as base_url:
        yield base_url.replace(LOCALHOST, "localhost")


def leaf(
    name: str = LOCALHOST, not_before: datetime | None = None, not_after: datetime | None = None
) -> AbstractContextManager[str]:
    return secure(AUTHORITY.issue_cert(name, not_before=not_before, not_after=not_after))


CASES: dict[str, tuple[str, Address]] = {
    "a name that does not resolve": ("dns", lambda: nullcontext("http://no-such-host.invalid/v1")),
    "a name that cannot exist": ("dns", lambda: nullcontext(f"https://{'x' * 70}.invalid/v1")),
    "a closed port": ("refused", refusing_address),
    "a closed port of a name with two addresses": ("refused", lambda: nullcontext("http://localhost:1/v1")),
    "reset when connected": ("reset", lambda: served_by(reset)),
    "closed when connected": ("reset", lambda: served_by(socket.socket.close)),
    "reset in the handshake": ("reset", lambda: served_by(reset, "https")),
    "closed in the handshake": ("reset", lambda: served_by(socket.socket.close, "https")),
    "reset when the reply has begun": ("truncated", lambda: served_by(begin_and_reset)),
    "no room to connect": ("timed_out", without_room),
    "silent": ("timed_out", lambda: served_by(stay_silent)),
    "silent in the handshake": ("timed_out", lambda: served_by(stay_silent, "https")),
    "a certificate that has expired": ("tls_expired", lambda: leaf(not_after=NOW - timedelta(days=1))),
    "a certificate that is not valid yet": ("tls_expired", lambda: leaf(not_before=NOW + timedelta(days=1))),
    "a certificate of an unknown authority": ("tls_untrusted", lambda: secure(trustme.CA().issue_cert(LOCALHOST))),
    "a certificate for another name": ("tls_name", lambda: by_name(AUTHORITY.issue_cert("other.example"))),
    "a certificate for another address": ("tls_name", lambda: leaf("127.0.0.2")),
    "plain HTTP behind https": ("unreachable", lambda: served_by(answer_plainly, "https")),
}


@pytest.fixture
def trusted(tmp_path: Path) -> Path:
    """A file with the certificate of the only authority that is trusted."""
    AUTHORITY.cert_pem.write_to_path(tmp_path / "authority.pem")
    return tmp_path / "authority.pem"


@pytest.mark.parametrize("case", CASES)
async def test_why_a_connection_failed(trusted: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Each reason for which a connection fails is its own kind of fault, and nothing is sent to a wrong server."""
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    monkeypatch.setenv("SSL_CERT_DIR", str(trusted.parent / "none"))
    kind, address = CASES[case]
    with address() as base_url:
        async with asyncio.timeout(WAIT_S):
            upstream = OpenAIUpstream(base_url)
            fault = await deliver(upstream, RecordingSink(), STREAMING, route(timeouts=SHORT))
            await upstream.stop()
    assert fault is not None
    assert (fault.kind.value, fault.status, fault.__cause__) == (kind, None, None)


async def test_a_provider_may_have_its_own_authorities(monkeypatch: pytest.MonkeyPatch, trusted: Path) -> None:
    """A certificate of a provider's own authority is accepted, and one of the system's authorities no longer is."""
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    own = trustme.CA()
    answered = list[bytes]()

    def serve(connection: socket.socket, context: ssl.SSLContext) -> None:
        with context.wrap_socket(connection, server_side=True) as wrapped:
            answered.append(wrapped.recv(65_536))
            wrapped.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{"data": []}')

    for authority, is_accepted in ((own, True), (AUTHORITY, False)):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(LOCALHOST).configure_cert(context)
        with served_by(partial(serve, context=context), "https") as base_url:
            async with asyncio.timeout(WAIT_S):
                upstream = OpenAIUpstream(base_url, authorities=own.cert_pem.bytes().decode())
                probe = await upstream.probe()
                await upstream.stop()
        assert probe.reachable is is_accepted
    assert "tls_untrusted" in probe.detail
    assert len(answered) == 1
