"""The HTTP client over TLS and through a proxy: which certificates it trusts, what it sends, when it gives up."""

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from cadenza.http.client import HttpClient, Unreachable
from cadenza.http.tunnel import PROXY_HEAD_BYTES_MAX
from tests.unit.http.peer import (
    LOCALHOST,
    Peer,
    Script,
    Visit,
    always,
    client_leaves,
    client_of,
    fetch,
    happens,
    read_part,
    responding,
)
from tests.unit.http.raw_client import WAIT_S, until
from tests.unit.upstreams.clock import Clock

OK = b"HTTP/1.1 200 OK\r\n"
HI = OK + b"content-length: 2\r\n\r\nhi"
NAME = "upstream.example"  # resolves nowhere: only a proxy can know where it is
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
BASIC = "Basic " + base64.b64encode("us er:p@ss:wörd".encode()).decode()
CREDENTIALS = "us%20er:p%40ss%3Aw%C3%B6rd"
CONNECT_S = 10.0


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """The only certificate authority that is trusted in the test."""
    made = trustme.CA()
    made.cert_pem.write_to_path(tmp_path / "authority.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    return made


def serving(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


def secure_peer(script: Script, authority: trustme.CA, *names: str) -> Peer:
    return Peer(script, serving(authority.issue_cert(*(names or (LOCALHOST,)))))


async def test_a_trusted_certificate(authority: trustme.CA) -> None:
    """An upstream with a trusted certificate is used, over one connection."""
    async with secure_peer(always(HI), authority) as peer, client_of(peer.url) as client:
        for _ in range(2):
            assert (await fetch(client)).body == b"hi"
        assert peer.requests_per_visit == [2]


async def silent_script(visit: Visit) -> None:
    await visit.until_left()


async def given_up(client: HttpClient, peer: Peer, clock: Clock) -> None:
    """The time to connect passes once the peer has the connection; then the client closes it."""
    fetching = asyncio.create_task(fetch(client, connect_s=CONNECT_S))
    await until(lambda: bool(peer.visits))
    await clock.leap(CONNECT_S - 1)
    assert not fetching.done()
    await clock.leap(2)
    with pytest.raises(Unreachable):
        await fetching
    await client_leaves(peer)


async def test_a_handshake_that_takes_too_long(clock: Clock) -> None:
    """The time to connect includes the handshake; a silent peer is given up, and the connection closed."""
    async with Peer(silent_script) as peer, client_of(f"https://{LOCALHOST}:{peer.port}/v1") as client:
        await given_up(client, peer, clock)


async def test_cancelling_inside_a_handshake_closes_the_connection() -> None:
    """A request cancelled during the handshake leaves no connection behind."""
    has_begun = asyncio.Event()

    async def script(visit: Visit) -> None:
        await visit.reader.read(1)
        has_begun.set()
        await visit.until_left()

    async with Peer(script) as peer, client_of(f"https://{LOCALHOST}:{peer.port}/v1") as client:
        task = asyncio.create_task(fetch(client))
        await happens(has_begun)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await client_leaves(peer)


async def test_ending_a_request_early_closes_its_connection(authority: trustme.CA) -> None:
    """Over TLS too the connection is closed at once, without waiting for the upstream's close_notify."""

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(OK + b"content-length: 9\r\n\r\nhalf")
        await visit.until_left()

    async with secure_peer(script, authority) as peer, client_of(peer.url) as client, asyncio.timeout(WAIT_S):
        async with client.request("POST", "/", b"", WAIT_S) as response:
            assert await read_part(response) == b"half"
        await client_leaves(peer)


async def test_a_body_that_ends_with_its_secure_connection(authority: trustme.CA) -> None:
    """A body without a length is complete when the upstream closes the TLS connection cleanly."""
    async with secure_peer(responding(OK + b"\r\nhi there"), authority) as peer, client_of(peer.url) as client:
        assert (await fetch(client)).body == b"hi there"


def tunnel_to(port: int, established: bytes = ESTABLISHED) -> Script:
    """A proxy that connects every tunnel to one upstream, whatever name it is asked for."""

    async def script(visit: Visit) -> None:
        await visit.request()
        reader, writer = await asyncio.open_connection(LOCALHOST, port)
        with contextlib.closing(writer):
            await visit.say(established)
            await asyncio.gather(pump(visit.reader, writer), pump(reader, visit.writer))
        visit.left.set()

    return script


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while read := await reader.read(65536):
        writer.write(read)
        await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def tunnelled(
    authority: trustme.CA, name: str = NAME, established: bytes = ESTABLISHED
) -> AsyncIterator[tuple[Peer, Peer]]:
    """An upstream of that name, and a proxy that tunnels to it."""
    async with (
        secure_peer(always(HI), authority, name) as upstream,
        Peer(tunnel_to(upstream.port, established)) as proxy,
    ):
        yield upstream, proxy


async def test_a_plain_upstream_through_a_proxy() -> None:
    """A proxy gets the whole address and its own credentials, with the upstream's Host; the connection is kept."""
    async with (
        Peer(always(HI)) as proxy,
        client_of(f"http://{NAME}:81/v1", f"http://{CREDENTIALS}@{LOCALHOST}:{proxy.port}") as client,
    ):
        for _ in range(2):
            assert (await fetch(client, "/models")).body == b"hi"
    assert proxy.requests_per_visit == [2]
    for request in proxy.visits[0].requests:
        assert (request.method, request.path) == ("POST", f"http://{NAME}:81/v1/models")
        assert request.headers["host"] == f"{NAME}:81"
        assert request.headers["proxy-authorization"] == BASIC


async def test_a_proxy_without_credentials() -> None:
    """Without credentials no Proxy-Authorization header is sent."""
    async with Peer(always(HI)) as proxy, client_of(f"http://{NAME}/v1", f"http://{LOCALHOST}:{proxy.port}") as client:
        await fetch(client, "/models")
    (request,) = proxy.visits[0].requests
    assert request.path == f"http://{NAME}/v1/models"
    assert "proxy-authorization" not in request.headers


async def test_a_secure_upstream_through_a_proxy(authority: trustme.CA) -> None:
    """The proxy gets CONNECT with its credentials; the upstream gets the request, and not the credentials."""
    async with tunnelled(authority) as (upstream, proxy):
        proxy_url = f"http://{CREDENTIALS}@{LOCALHOST}:{proxy.port}"
        async with client_of(f"https://{NAME}/v1", proxy_url) as client:
            for _ in range(2):
                assert (await fetch(client, "/models")).body == b"hi"
    (asked,) = proxy.visits[0].requests
    assert (asked.method, asked.path) == ("CONNECT", f"{NAME}:443")
    assert asked.headers == {"host": f"{NAME}:443", "proxy-authorization": BASIC}
    assert upstream.requests_per_visit == [2]
    for request in upstream.visits[0].requests:
        assert (request.method, request.path, request.headers["host"]) == ("POST", "/v1/models", NAME)
        assert "proxy-authorization" not in request.headers


async def test_a_tunnel_to_a_numeric_address(authority: trustme.CA) -> None:
    """An IPv6 address stands in brackets in a CONNECT request."""
    async with (
        tunnelled(authority, "::1") as (_upstream, proxy),
        client_of("https://[::1]:8443/v1", f"http://{LOCALHOST}:{proxy.port}") as client,
    ):
        assert (await fetch(client)).body == b"hi"
    assert proxy.visits[0].requests[0].path == "[::1]:8443"


async def test_a_tunnel_to_a_host_of_another_name(authority: trustme.CA) -> None:
    """Through a tunnel too, a certificate for another name is refused, and the tunnel is closed."""
    async with tunnelled(authority, "other.example") as (upstream, proxy):
        async with client_of(f"https://{NAME}/v1", f"http://{LOCALHOST}:{proxy.port}") as client:
            with pytest.raises(Unreachable):
                await fetch(client)
            await client_leaves(proxy)
        assert sum(upstream.requests_per_visit) == 0


GRANTED = {
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\n\r\n",
    "headers": b"HTTP/1.1 200 Connection established\r\nvia: 1.1 proxy\r\n\r\n",
    "an empty reason": b"HTTP/1.1 200 \r\n\r\n",
    "no reason": b"HTTP/1.1 200\r\n\r\n",
}


@pytest.mark.parametrize("established", GRANTED.values(), ids=GRANTED)
async def test_a_proxy_that_grants_a_tunnel(authority: trustme.CA, established: bytes) -> None:
    """A tunnel is granted by the status 200, whatever the reason phrase and the headers are."""
    async with (
        tunnelled(authority, established=established) as (_upstream, proxy),
        client_of(f"https://{NAME}/v1", f"http://{LOCALHOST}:{proxy.port}") as client,
    ):
        assert (await fetch(client)).body == b"hi"


NO_TUNNEL = {
    "credentials wanted": b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 3\r\n\r\nwho",
    "forbidden": b"HTTP/1.1 403 Forbidden\r\n\r\n",
    "upstream not there": b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n",
    "200 only in its words": b"HTTP/1.1 500 200 \r\n\r\n",
    "closes": b"",
    "closes inside its response": b"HTTP/1.1 200 Conn",
    "closes before the end of its head": b"HTTP/1.1 200 Connection established\r\n",
    "closes inside the tunnel": ESTABLISHED,
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
}


@pytest.mark.parametrize("sent", NO_TUNNEL.values(), ids=NO_TUNNEL)
async def test_a_proxy_that_refuses_a_tunnel(sent: bytes) -> None:
    """A proxy that refuses, fails, closes or is not HTTP makes the upstream Unreachable, and is asked once."""
    async with Peer(responding(sent)) as proxy:
        async with client_of(f"https://{NAME}/v1", f"http://{LOCALHOST}:{proxy.port}") as client:
            with pytest.raises(Unreachable):
                await fetch(client)
        assert proxy.requests_per_visit == [1]


async def test_a_proxy_whose_response_has_no_end() -> None:
    """The head of a proxy's response is bounded; past the limit the connection is closed."""

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(b"HTTP/1.1 200 OK\r\n" + b"x-more: and more\r\n" * (2 * PROXY_HEAD_BYTES_MAX // 18))
        await visit.until_left()

    async with Peer(script) as proxy, client_of(f"https://{NAME}/v1", f"http://{LOCALHOST}:{proxy.port}") as client:
        with pytest.raises(Unreachable):
            await fetch(client)
        await client_leaves(proxy)


async def asked_script(visit: Visit) -> None:
    await visit.request()
    await visit.until_left()


async def test_a_silent_proxy(clock: Clock) -> None:
    """The time to connect includes the proxy's; a silent one is given up, and the connection closed."""
    async with (
        Peer(asked_script) as proxy,
        client_of(f"https://{NAME}/v1", f"http://{LOCALHOST}:{proxy.port}") as client,
    ):
        await given_up(client, proxy, clock)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 Conn", ESTABLISHED], ids=["asked", "answering", "inside"])
async def test_cancelling_while_a_tunnel_is_made_closes_it(sent: bytes) -> None:
    """A request cancelled at any point of making a tunnel closes the connection to the proxy at once."""
    is_under_way = asyncio.Event()

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(sent)
        is_under_way.set()
        await visit.until_left()

    async with Peer(script) as proxy, client_of(f"https://{NAME}/v1", f"http://{LOCALHOST}:{proxy.port}") as client:
        task = asyncio.create_task(fetch(client))
        await happens(is_under_way)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await client_leaves(proxy)


@pytest.mark.parametrize("url", [f"http://{NAME}/v1", f"https://{NAME}/v1"])
@pytest.mark.parametrize("proxy", [f"http://{LOCALHOST}:1", "http://no-such-host.invalid:3128", "http://a..b:3128"])
async def test_a_proxy_that_is_not_there(url: str, proxy: str) -> None:
    """A proxy that cannot be reached makes the upstream Unreachable: the proxy is never bypassed."""
    async with client_of(url, proxy) as client:
        with pytest.raises(Unreachable):
            await fetch(client)
