"""The upstream HTTP client over TLS and through a proxy: whom it trusts, what it tells whom, and when it gives up."""

import asyncio
import base64
import contextlib
import os
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from cadenza.http.client import HEAD_BYTES_MAX, Broken, Unreachable
from tests.unit.http.peer import (
    LOCALHOST,
    WAIT_S,
    Peer,
    Story,
    Visit,
    always,
    answering,
    client_of,
    fetch,
    happens,
    read_all,
    until,
)

OK = b"HTTP/1.1 200 OK\r\n"
HI = OK + b"content-length: 2\r\n\r\nhi"
NAME = "upstream.example"  # resolves nowhere: only a proxy can know where it is
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
BASIC = "Basic " + base64.b64encode("us er:p@ss:wörd".encode()).decode()
CREDENTIALS = "us%20er:p%40ss%3Aw%C3%B6rd"


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """The only certificate authority that this machine trusts, as far as the test goes."""
    made = trustme.CA()
    made.cert_pem.write_to_path(tmp_path / "authority.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    return made


def serving(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


def secure_peer(story: Story, authority: trustme.CA, *names: str) -> Peer:
    return Peer(story, serving(authority.issue_cert(*(names or (LOCALHOST,)))))


async def test_a_trusted_certificate(authority: trustme.CA) -> None:
    """An upstream with a certificate of the system's authorities is talked to, over one connection."""
    async with secure_peer(always(HI), authority) as peer, client_of(peer.url) as client:
        for _ in range(2):
            assert (await fetch(client)).body == b"hi"
        assert peer.requests_per_visit == [2]


async def unreachable(peer: Peer) -> None:
    async with client_of(peer.url) as client:
        with pytest.raises(Unreachable) as failure:
            await fetch(client, body=b"secret")
    assert failure.value.__suppress_context__
    assert sum(peer.requests_per_visit) == 0


async def test_a_certificate_for_another_name(authority: trustme.CA) -> None:
    """A certificate that does not name the upstream's host is not its own: nothing is sent."""
    async with secure_peer(always(HI), authority, "other.example", "127.0.0.2") as peer:
        await unreachable(peer)


async def test_a_certificate_of_an_unknown_authority(authority: trustme.CA) -> None:
    """A certificate that the system does not vouch for is refused, whatever name stands in it."""
    async with secure_peer(always(HI), trustme.CA()) as peer:
        await unreachable(peer)


async def test_a_certificate_that_has_expired(authority: trustme.CA) -> None:
    """A certificate is good for its time only."""
    yesterday = datetime.now(UTC) - timedelta(days=1)
    expired = authority.issue_cert(LOCALHOST, not_after=yesterday)
    async with Peer(always(HI), serving(expired)) as peer:
        await unreachable(peer)


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x46", b""])
async def test_a_peer_that_does_not_speak_tls(said: bytes) -> None:
    """A peer that answers the handshake with anything else, or hangs up on it, is Unreachable."""

    async def story(visit: Visit) -> None:
        await visit.reader.read(1)
        await visit.say(said)

    async with Peer(story) as peer, client_of(f"https://{LOCALHOST}:{peer.port}/v1") as client:
        with pytest.raises(Unreachable):
            await fetch(client)


async def silent_story(visit: Visit) -> None:
    await visit.until_left()


async def test_a_handshake_that_takes_too_long() -> None:
    """The time to connect includes the handshake; a peer that does not take part in it is left at once."""
    async with Peer(silent_story) as peer, client_of(f"https://{LOCALHOST}:{peer.port}/v1") as client:
        with pytest.raises(Unreachable):
            await fetch(client, connect_s=0.1)
        await happens(peer.visits[0].left)


async def test_cancelling_inside_a_handshake_closes_the_connection() -> None:
    """A request cancelled during the handshake leaves no connection behind."""
    has_begun = asyncio.Event()

    async def story(visit: Visit) -> None:
        await visit.reader.read(1)
        has_begun.set()
        await visit.until_left()

    async with Peer(story) as peer, client_of(f"https://{LOCALHOST}:{peer.port}/v1") as client:
        task = asyncio.create_task(fetch(client))
        await happens(has_begun)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await happens(peer.visits[0].left)


async def test_leaving_inside_a_body_closes_at_once(authority: trustme.CA) -> None:
    """Over TLS too, an upstream notices at once that nobody reads on, without its taking part in a farewell."""

    async def story(visit: Visit) -> None:
        await visit.request()
        await visit.say(OK + b"content-length: 9\r\n\r\nhalf")
        await visit.until_left()

    async with secure_peer(story, authority) as peer, client_of(peer.url) as client, asyncio.timeout(WAIT_S):
        async with client.request("POST", "/", b"", WAIT_S) as response:
            assert await response.read() == b"half"
        await happens(peer.visits[0].left)


async def test_a_body_that_ends_with_its_secure_connection(authority: trustme.CA) -> None:
    """A body without a length is whole when the upstream closes the secure connection in good order."""
    async with secure_peer(answering(OK + b"\r\nhi there"), authority) as peer, client_of(peer.url) as client:
        assert (await fetch(client)).body == b"hi there"


async def test_a_body_cut_off_under_the_secure_connection(authority: trustme.CA) -> None:
    """A body with a length that ends early is Broken, over TLS as without."""

    async def story(visit: Visit) -> None:
        await visit.request()
        await visit.say(OK + b"content-length: 9\r\n\r\nhalf")
        visit.writer.transport.abort()

    async with secure_peer(story, authority) as peer, client_of(peer.url) as client:
        with pytest.raises(Broken):
            await fetch(client)


async def test_a_kept_secure_connection_closed_while_idle(authority: trustme.CA) -> None:
    """A secure connection that the upstream closed meanwhile is not used again."""
    async with secure_peer(answering(HI), authority) as peer, client_of(peer.url) as client, asyncio.timeout(WAIT_S):
        async with client.request("POST", "/", b"", WAIT_S) as response:
            assert await read_all(response) == b"hi"
        await until(lambda: not response.is_usable())
        assert (await fetch(client)).body == b"hi"
        assert peer.requests_per_visit == [1, 1]


async def test_large_bodies_over_tls(authority: trustme.CA) -> None:
    """Megabytes pass both ways over TLS, held up and let go by a reader that is slow."""
    body = os.urandom(1024 * 1024) * 4

    async def story(visit: Visit) -> None:
        request = await visit.request()
        await visit.say(OK + b"content-length: %d\r\n\r\n" % len(body), request.body)

    async with secure_peer(story, authority) as peer, client_of(peer.url) as client, asyncio.timeout(4 * WAIT_S):
        async with client.request("POST", "/", body, WAIT_S) as response:
            parts = []
            while (part := await response.read()) is not None:
                parts.append(part)
                await asyncio.sleep(0.005)  # a slow reader
        assert b"".join(parts) == body


def tunnel_to(port: int, established: bytes = ESTABLISHED) -> Story:
    """A proxy that joins whoever asks to the one upstream there is, whatever name they ask for."""

    async def story(visit: Visit) -> None:
        await visit.request()
        reader, writer = await asyncio.open_connection(LOCALHOST, port)
        with contextlib.closing(writer):
            await visit.say(established)
            await asyncio.gather(pump(visit.reader, writer), pump(reader, visit.writer))
        visit.left.set()

    return story


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while read := await reader.read(65536):
        writer.write(read)
        await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def tunnelled(
    authority: trustme.CA, name: str = NAME, established: bytes = ESTABLISHED
) -> AsyncIterator[tuple[Peer, Peer]]:
    """An upstream of that name, and a proxy that knows where it is."""
    async with (
        secure_peer(always(HI), authority, name) as upstream,
        Peer(tunnel_to(upstream.port, established)) as proxy,
    ):
        yield upstream, proxy


async def test_a_plain_upstream_through_a_proxy() -> None:
    """A proxy is asked for the whole address, with its own credentials; the host is the upstream's; it is kept."""
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
    """No credentials, no header for them."""
    async with Peer(always(HI)) as proxy, client_of(f"http://{NAME}/v1", f"http://{LOCALHOST}:{proxy.port}") as client:
        await fetch(client, "/models")
    (request,) = proxy.visits[0].requests
    assert request.path == f"http://{NAME}/v1/models"
    assert "proxy-authorization" not in request.headers


async def test_a_secure_upstream_through_a_proxy(authority: trustme.CA) -> None:
    """The proxy is asked for a tunnel, by name and with its credentials; what passes in it is the upstream's alone."""
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
    """An IPv6 address stands in brackets where a tunnel is asked for."""
    async with (
        tunnelled(authority, "::1") as (_upstream, proxy),
        client_of("https://[::1]:8443/v1", f"http://{LOCALHOST}:{proxy.port}") as client,
    ):
        assert (await fetch(client)).body == b"hi"
    assert proxy.visits[0].requests[0].path == "[::1]:8443"


async def test_a_tunnel_to_another(authority: trustme.CA) -> None:
    """Through a tunnel too, a certificate for another name is refused, and both ends of the tunnel are closed."""
    async with tunnelled(authority, "other.example") as (upstream, proxy):
        async with client_of(f"https://{NAME}/v1", f"http://{LOCALHOST}:{proxy.port}") as client:
            with pytest.raises(Unreachable):
                await fetch(client)
            await happens(proxy.visits[0].left)
        assert sum(upstream.requests_per_visit) == 0


GRANTED = {
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\n\r\n",
    "headers": b"HTTP/1.1 200 Connection established\r\nvia: 1.1 proxy\r\n\r\n",
    "an empty reason": b"HTTP/1.1 200 \r\n\r\n",
    "no reason": b"HTTP/1.1 200\r\n\r\n",
}


@pytest.mark.parametrize("established", GRANTED.values(), ids=GRANTED)
async def test_a_proxy_grants_in_its_own_words(authority: trustme.CA, established: bytes) -> None:
    """A tunnel is granted by the status 200, whatever else the proxy says."""
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
    "hangs up": b"",
    "hangs up inside its answer": b"HTTP/1.1 200 Conn",
    "hangs up before the end of its head": b"HTTP/1.1 200 Connection established\r\n",
    "hangs up inside the tunnel": ESTABLISHED,
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
}


@pytest.mark.parametrize("said", NO_TUNNEL.values(), ids=NO_TUNNEL)
async def test_a_proxy_that_gives_no_tunnel(said: bytes) -> None:
    """A proxy that refuses, fails, dies or babbles makes the upstream Unreachable, and is asked once."""
    async with Peer(answering(said)) as proxy:
        async with client_of(f"https://{NAME}/v1", f"http://{LOCALHOST}:{proxy.port}") as client:
            with pytest.raises(Unreachable):
                await fetch(client)
        assert proxy.requests_per_visit == [1]


async def test_a_proxy_whose_answer_has_no_end() -> None:
    """A proxy is heard only so far: one that never comes to the end of its head is left."""

    async def story(visit: Visit) -> None:
        await visit.request()
        await visit.say(b"HTTP/1.1 200 OK\r\n" + b"x-more: and more\r\n" * (2 * HEAD_BYTES_MAX // 18))
        await visit.until_left()

    async with Peer(story) as proxy, client_of(f"https://{NAME}/v1", f"http://{LOCALHOST}:{proxy.port}") as client:
        with pytest.raises(Unreachable):
            await fetch(client)
        await happens(proxy.visits[0].left)


async def test_a_proxy_that_resets() -> None:
    """A proxy whose connection is reset before it answers makes the upstream Unreachable."""

    async def story(visit: Visit) -> None:
        await visit.request()
        visit.reset()

    async with Peer(story) as proxy, client_of(f"https://{NAME}/v1", f"http://{LOCALHOST}:{proxy.port}") as client:
        with pytest.raises(Unreachable):
            await fetch(client)


async def asked_story(visit: Visit) -> None:
    await visit.request()
    await visit.until_left()


async def test_a_proxy_that_says_nothing() -> None:
    """The time to connect includes the proxy's; one that does not answer is left at once."""
    async with (
        Peer(asked_story) as proxy,
        client_of(f"https://{NAME}/v1", f"http://{LOCALHOST}:{proxy.port}") as client,
    ):
        with pytest.raises(Unreachable):
            await fetch(client, connect_s=0.1)
        await happens(proxy.visits[0].left)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 Conn", ESTABLISHED], ids=["asked", "answering", "inside"])
async def test_cancelling_while_a_tunnel_is_made_closes_it(said: bytes) -> None:
    """A request cancelled at any point of making a tunnel leaves the proxy at once."""
    is_under_way = asyncio.Event()

    async def story(visit: Visit) -> None:
        await visit.request()
        await visit.say(said)
        is_under_way.set()
        await visit.until_left()

    async with Peer(story) as proxy, client_of(f"https://{NAME}/v1", f"http://{LOCALHOST}:{proxy.port}") as client:
        task = asyncio.create_task(fetch(client))
        await happens(is_under_way)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await happens(proxy.visits[0].left)


@pytest.mark.parametrize("url", [f"http://{NAME}/v1", f"https://{NAME}/v1"])
@pytest.mark.parametrize("proxy", [f"http://{LOCALHOST}:1", "http://no-such-host.invalid:3128", "http://a..b:3128"])
async def test_a_proxy_that_is_not_there(url: str, proxy: str) -> None:
    """A proxy that cannot be reached makes the upstream Unreachable; there is no way around it."""
    async with client_of(url, proxy) as client:
        with pytest.raises(Unreachable):
            await fetch(client)


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_proxy_of_several_addresses(authority: trustme.CA, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy's name may stand for several addresses: one that does not answer is passed over."""
    loop = asyncio.get_running_loop()
    look_up = loop.getaddrinfo

    async def look_up_two(host: str, port: int, **options: int) -> object:
        there = await look_up(LOCALHOST if host == "proxy.example" else host, port, **options)
        not_there = [(*answer[:4], ("127.0.0.2", port)) for answer in there]
        return not_there + there

    monkeypatch.setattr(loop, "getaddrinfo", look_up_two)
    async with (
        tunnelled(authority) as (_upstream, proxy),
        client_of(f"https://{NAME}/v1", f"http://proxy.example:{proxy.port}") as client,
    ):
        assert (await fetch(client)).body == b"hi"
