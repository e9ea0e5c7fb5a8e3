"""Fetching pages: what is sent, where the connection goes, redirects, and what is kept."""

import asyncio
import ssl
from importlib.metadata import version
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

import msgspec
import pytest
import trustme
import uvloop

from cadenza.parts.grounding.files.records import FetchedPage
from cadenza.parts.grounding.search.pages.addresses import AddressRules, parse_target
from cadenza.parts.grounding.search.pages.client import BodyLimit, FetchLimits, PageClient
from cadenza.parts.grounding.search.pages.fetch import PageFetcher
from tests.parts.grounding.fetch_site import (
    HOST,
    HTML,
    LOOPBACK,
    NOT_FOUND,
    PATIENT,
    Names,
    failure,
    fetching,
    page,
    redirect,
    serving,
)
from tests.unit.http.peer import LOCALHOST, Peer, Visit, full_listener, happens, refusing_port
from tests.unit.http.raw_client import WAIT_S, until
from tests.unit.upstreams.clock import Clock

HI = page(b"hi")
METADATA = "169.254.169.254"


async def test_a_page() -> None:
    """A page has its URL, its content type as given, and its bytes."""
    async with Peer(serving({"/a?b=c": page(b"<p>hi", "text/html; charset=x")})) as site, fetching() as fetcher:
        url = f"http://{HOST}:{site.port}/a?b=c"
        assert await fetcher.fetch(url) == FetchedPage(url, "text/html; charset=x", b"<p>hi")


async def test_what_is_sent() -> None:
    """A request has the host's name and no cookie, credentials or referrer, also after a redirect that sets them."""
    away = b"HTTP/1.1 302 Found\r\nset-cookie: a=b\r\nlocation: /hi\r\ncontent-length: 0\r\n\r\n"
    async with Peer(serving({"/": away, "/hi": HI})) as site, fetching() as fetcher:
        await fetcher.fetch(f"http://{HOST}:{site.port}")
        requests = [request for visit in site.visits for request in visit.requests]
    assert [request.path for request in requests] == ["/robots.txt", "/", "/hi"]
    for request in requests:
        assert request.method == "GET"
        assert request.headers["host"] == f"{HOST}:{site.port}"
        assert request.headers["user-agent"].startswith(f"Cadenza/{version('cadenza')} (")
        assert request.headers["accept-encoding"] == "identity"
        assert request.headers.keys() == {"host", "user-agent", "accept", "accept-encoding", "connection"}


@pytest.mark.parametrize("coding", [b"gzip", b"br", b"deflate", b"identity, gzip", b"nonsense"])
async def test_a_compressed_page(coding: bytes) -> None:
    """A page that comes compressed, though it was asked for as it is, is refused: no bomb is ever opened."""
    sent = page(b"hi", "text/plain", b"content-encoding: " + coding)
    async with Peer(serving({"/": sent})) as site, fetching() as fetcher:
        assert await failure(fetcher, f"http://{HOST}:{site.port}/") == "encoding"


READ = (
    "text/html", "TEXT/HTML;charset=utf-8", "application/xhtml+xml", "text/plain", "text/csv", "application/json",
    "application/ld+json", "application/pdf", "application/xml", "text/xml", "application/rss+xml",
)  # fmt: skip
REFUSED = (
    "", "text", "image/png", "image/svg+xml", "video/mp4", "application/octet-stream", "application/zip", "html",
    "application/x-shockwave-flash", "multipart/x-mixed-replace", "application/pdfx", "application/javascript",
)  # fmt: skip


async def test_content_types() -> None:
    """Text, JSON, XML and PDF are read; other content types, and none, are refused before the body is read."""
    pages = {f"/{number}": page(b"hi", content_type) for number, content_type in enumerate(READ + REFUSED)}
    async with Peer(serving(pages)) as site, fetching() as fetcher:
        urls = [f"http://{HOST}:{site.port}{path}" for path in pages]
        assert [(await fetcher.fetch(url)).content_type for url in urls[: len(READ)]] == [*READ]
        assert {await failure(fetcher, url) for url in urls[len(READ) :]} == {"type"}


@pytest.mark.parametrize("status", [201, 204, 206, 302, 304, 404, 500, 999])
async def test_a_status_without_a_page(status: int) -> None:
    """Only an answer with status 200 is a page."""
    answer = b"HTTP/1.1 %d Word\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi" % status
    async with Peer(serving({"/": answer})) as site, fetching() as fetcher:
        assert await failure(fetcher, f"http://{HOST}:{site.port}/") == "status"


# Where the connection goes


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.2"], ["10.0.0.1"], [METADATA], ["::1"], ["::ffff:127.0.0.2"], ["64:ff9b::7f00:2"], ["fd00:ec2::254"],
     ["0.0.0.0"], [LOCALHOST, "192.168.0.1"], ["192.168.0.1", LOCALHOST], [LOCALHOST, "fe80::1"]],
)  # fmt: skip
async def test_a_name_with_a_private_address(addresses: list[str]) -> None:
    """A name is refused if any of its addresses is private, and no connection is made."""
    async with Peer(serving({"/": HI})) as site, fetching(Names({HOST: [addresses]})) as fetcher:
        assert await failure(fetcher, f"http://{HOST}:{site.port}/") == "private"
        assert site.visits == []


@pytest.mark.parametrize("host", ["127.0.0.2", "[::1]", "[::ffff:127.0.0.2]", "10.0.0.1", METADATA, "[64:ff9b::a00:1]"])
async def test_a_private_address_in_the_url(host: str) -> None:
    """An address in the URL is checked as one that a name gave, and nothing is looked up."""
    names = Names()
    async with fetching(names) as fetcher:
        assert await failure(fetcher, f"http://{host}/latest/meta-data") == "private"
    assert names.asked == []


async def test_loopback_is_refused_by_default() -> None:
    """Without allowed networks, names and addresses of this machine are refused, by the system's resolver too."""
    fetcher = PageFetcher(PATIENT)
    for host in ("localhost", "localhost.", "127.0.0.1", "[::1]", "0.0.0.0"):
        assert await failure(fetcher, f"http://{host}/") == "private"
    await fetcher.close()


async def test_the_systems_resolver() -> None:
    """Without a resolver of the caller's, names are looked up by the system."""
    async with Peer(serving({"/": HI})) as site:
        fetcher = PageFetcher(PATIENT, [IPv4Network("127.0.0.0/8"), IPv6Network("::1/128")])
        assert (await fetcher.fetch(f"http://localhost:{site.port}/")).body == b"hi"
        await fetcher.close()


async def test_a_name_without_an_address() -> None:
    """A name without addresses is unresolved."""
    async with fetching(Names({HOST: [[]]})) as fetcher:
        assert await failure(fetcher, f"http://{HOST}/") == "unresolved"


async def test_the_checked_address_is_the_one_connected_to() -> None:
    """A name that is private from the third look-up on is fetched: after its check nothing is looked up again."""
    names = Names({HOST: [[LOCALHOST], [LOCALHOST], [METADATA]]})
    async with Peer(serving({"/": HI})) as site, fetching(names) as fetcher:
        assert (await fetcher.fetch(f"http://{HOST}:{site.port}/")).body == b"hi"
        assert names.asked == [HOST, HOST]  # for robots.txt and for the page
        assert await failure(fetcher, f"http://{HOST}:{site.port}/again") == "private"


async def test_an_address_that_is_down() -> None:
    """If the first address refuses the connection, the next one is used."""
    networks = [IPv4Network("127.0.0.0/8")]
    names = Names({HOST: [["127.0.0.9", "::ffff:127.0.0.1"]]})
    async with Peer(serving({"/": HI})) as site, fetching(names, allow_networks=networks) as fetcher:
        assert (await fetcher.fetch(f"http://{HOST}:{site.port}/")).body == b"hi"


async def test_a_host_that_does_not_accept() -> None:
    """A host that refuses connections, or lets them hang, is unreachable."""
    limits = msgspec.structs.replace(PATIENT, connect_s=0.1)
    async with fetching(limits=limits) as fetcher:
        with full_listener() as port:
            assert await failure(fetcher, f"http://{HOST}:{port}/") == "unreachable"
        with refusing_port() as port:
            assert await failure(fetcher, f"http://{HOST}:{port}/") == "unreachable"


async def test_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the environment is not used: it would look up the name again, by itself."""
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with Peer(serving({"/": HI})) as site, fetching() as fetcher:
        assert (await fetcher.fetch(f"http://{HOST}:{site.port}/")).body == b"hi"


# Redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect(status: int) -> None:
    """A redirect is followed, also to another host, and the page has the URL where it was found."""
    names = Names({HOST: [[LOCALHOST]], "other.example": [[LOCALHOST]]})
    async with Peer(serving({"/b": HI})) as other, fetching(names) as fetcher:
        wanted = f"http://other.example:{other.port}/b"
        async with Peer(serving({"/": redirect(wanted, status)})) as site:
            assert (await fetcher.fetch(f"http://{HOST}:{site.port}/")).url == wanted


@pytest.mark.parametrize(
    ("location", "reason"),
    [(f"http://{METADATA}/latest/meta-data", "private"), ("http://inside.example/", "private"),
     ("http://[::ffff:169.254.169.254]/", "private"), ("http://2852039166/", "refused"), ("//0xa9fea9fe/", "refused"),
     ("http://localhost:6379/", "private"), ("file:///etc/passwd", "refused"), ("http://a:b@site.example/", "refused")],
)  # fmt: skip
async def test_a_redirect_to_a_private_address(location: str, reason: str) -> None:
    """Every redirect is checked as the first URL was."""
    names = Names({HOST: [[LOCALHOST]], "inside.example": [["10.0.0.1"]], "localhost": [["::1"]]})
    async with Peer(serving({"/": redirect(location)})) as site, fetching(names) as fetcher:
        assert await failure(fetcher, f"http://{HOST}:{site.port}/") == reason


async def test_the_number_of_redirects() -> None:
    """Five redirects are followed, and not a sixth."""
    pages = {f"/{n}": redirect(f"/{n - 1}") for n in range(1, 9)} | {"/0": HI}
    async with Peer(serving(pages)) as site, fetching() as fetcher:
        assert (await fetcher.fetch(f"http://{HOST}:{site.port}/5")).body == b"hi"
        assert await failure(fetcher, f"http://{HOST}:{site.port}/6") == "redirects"


# TLS


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """The only certificate authority that is trusted in the test."""
    made = trustme.CA()
    made.cert_pem.write_to_path(tmp_path / "authority.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    return made


def tls_of(certificate: trustme.LeafCert, asked: list[str] | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)

    def note(_socket: object, name: str | None, _context: ssl.SSLContext) -> None:
        if asked is not None:
            asked.append(name or "")

    context.sni_callback = note
    return context


async def test_a_page_over_tls(authority: trustme.CA) -> None:
    """The connection goes to the address, while TLS asks for the name and checks it in the certificate."""
    asked = list[str]()
    tls = tls_of(authority.issue_cert(HOST), asked)
    async with Peer(serving({"/": HI}), tls) as site, fetching() as fetcher:
        assert (await fetcher.fetch(f"https://{HOST}:{site.port}/")).body == b"hi"
        assert site.visits[0].requests[0].headers["host"] == f"{HOST}:{site.port}"
    assert set(asked) == {HOST}


@pytest.mark.parametrize(("name", "is_trusted"), [("other.example", True), (LOCALHOST, True), (HOST, False)])
async def test_a_certificate_that_does_not_fit(authority: trustme.CA, name: str, is_trusted: bool) -> None:
    """A certificate for another name, for the address, or of an unknown authority is refused, and nothing is sent."""
    certificate = (authority if is_trusted else trustme.CA()).issue_cert(name)
    async with Peer(serving({"/": HI}), tls_of(certificate)) as site, fetching() as fetcher:
        assert await failure(fetcher, f"https://{HOST}:{site.port}/") == "tls"
        assert sum(site.requests_per_visit) == 0


async def test_a_redirect_from_https_to_http(authority: trustme.CA) -> None:
    """A redirect from https to http is refused."""
    tls = tls_of(authority.issue_cert(HOST))
    async with Peer(serving({"/": redirect(f"http://{HOST}/")}), tls) as site, fetching() as fetcher:
        assert await failure(fetcher, f"https://{HOST}:{site.port}/") == "downgrade"


def test_under_the_services_event_loop(authority: trustme.CA) -> None:
    """Under uvloop, a page is fetched over TLS from the checked address, and a private one is refused."""

    async def main() -> None:
        names = Names({HOST: [[LOCALHOST]], "inside.example": [["10.0.0.1"]]})
        async with Peer(serving({"/": HI}), tls_of(authority.issue_cert(HOST))) as site, fetching(names) as fetcher:
            assert (await fetcher.fetch(f"https://{HOST}:{site.port}/")).body == b"hi"
            assert await failure(fetcher, "https://inside.example/") == "private"

    uvloop.run(main())


# Pages that are kept, and how many are fetched at once


async def test_a_page_is_kept_for_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is fetched once within ten minutes, and again after that."""
    clock = Clock(asyncio.get_running_loop(), monkeypatch)
    async with Peer(serving({"/": HI})) as site, fetching() as fetcher:
        first = await fetcher.fetch(f"http://{HOST}:{site.port}/")
        assert await fetcher.fetch(f"http://{HOST}:{site.port}#part") is first
        assert len(site.visits) == 2
        await clock.leap(601.0)
        assert await fetcher.fetch(f"http://{HOST}:{site.port}/") is not first


async def test_a_page_that_must_not_be_stored() -> None:
    """A page with `cache-control: no-store` is not kept, nor is a failure."""
    pages = {"/": page(b"hi", "text/html", b"cache-control: private, No-Store"), "/none": NOT_FOUND}
    async with Peer(serving(pages)) as site, fetching() as fetcher:
        for _ in range(2):
            await fetcher.fetch(f"http://{HOST}:{site.port}/")
            await failure(fetcher, f"http://{HOST}:{site.port}/none")
        assert len(site.visits) == 5


@pytest.mark.parametrize(("count", "size_bytes", "is_read"), [(900, 1, True), (3000, 1, False)])
async def test_tiny_chunks(count: int, size_bytes: int, is_read: bool) -> None:
    """A body may come in many chunks, or in some tiny ones. Many tiny ones would hold the event loop: it is broken."""
    chunks = b"%x\r\n%b\r\n" % (size_bytes, b"x" * size_bytes) * count
    answer = HTML + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    async with Peer(serving({"/": answer})) as site, fetching() as fetcher:
        url = f"http://{HOST}:{site.port}/"
        if is_read:
            assert len((await fetcher.fetch(url)).body) == count * size_bytes
        else:
            assert await failure(fetcher, url) == "broken"


async def test_a_page_counts_for_the_budget_until_it_is_collected() -> None:
    """Pages that wait to be read are bounded together: a further one is refused until one of them is let go."""
    answer = page(b"0123", "text/html", b"cache-control: no-store", b"content-encoding: Identity ")
    limits = msgspec.structs.replace(PATIENT, held_bytes=7)
    async with Peer(serving({"/a": answer, "/b": answer})) as site, fetching(limits=limits) as fetcher:
        waiting = await fetcher.fetch(f"http://{HOST}:{site.port}/a")
        assert await failure(fetcher, f"http://{HOST}:{site.port}/b") == "busy"
        assert waiting.body == b"0123"
        del waiting
        assert (await fetcher.fetch(f"http://{HOST}:{site.port}/b")).body == b"0123"


async def test_a_body_that_may_be_cut() -> None:
    """Its first bytes are taken, and no more of the budget than these."""
    limits = msgspec.structs.replace(PATIENT, held_bytes=10)
    async with Peer(serving({"/": page(b"0123456789abcdef")})) as site:
        client = PageClient(limits, AddressRules(LOOPBACK), Names())
        target, cut = parse_target(f"http://{HOST}:{site.port}/"), BodyLimit(10, truncates=True)
        for _ in range(2):
            assert (await client.get(target, lambda *_: cut)).body == b"0123456789"


async def test_a_closed_fetcher() -> None:
    """A closed fetcher has forgotten its pages and fetches none."""
    async with Peer(serving({"/": HI})) as site, fetching() as fetcher:
        await fetcher.fetch(f"http://{HOST}:{site.port}/")
        await fetcher.close()
        assert await failure(fetcher, f"http://{HOST}:{site.port}/") == "closed"


@pytest.mark.parametrize(("limits", "most"), [(FetchLimits(at_once=3), 3), (FetchLimits(at_once_per_host=2), 2)])
async def test_how_many_are_fetched_at_once(limits: FetchLimits, most: int) -> None:
    """No more connections are open at once than allowed, in all and to one host; the rest wait."""
    limits = msgspec.structs.replace(limits, connect_s=WAIT_S, page_s=WAIT_S)
    release = asyncio.Event()
    open_now = most_open = 0

    async def slow(visit: Visit) -> None:
        nonlocal open_now, most_open
        open_now += 1
        most_open = max(most_open, open_now)
        await happens(release)
        open_now -= 1
        await visit.say(HI)

    async with Peer(serving({f"/{n}": slow for n in range(8)})) as site, fetching(limits=limits) as fetcher:
        tasks = [asyncio.create_task(fetcher.fetch(f"http://{HOST}:{site.port}/{n}")) for n in range(8)]
        await until(lambda: open_now == most)
        release.set()
        assert [fetched.body for fetched in await asyncio.gather(*tasks)] == [b"hi"] * 8
    assert most_open == most


async def test_slow_pages_of_one_owner_leave_room_for_others() -> None:
    """An owner whose pages never come waits for places of its own, while a page of another owner is fetched."""
    limits = msgspec.structs.replace(PATIENT, at_once=2, at_once_per_owner=1)
    async with (
        Peer(serving({**{f"/slow?{n}": Visit.until_left for n in range(3)}, "/b": HI})) as site,
        fetching(limits=limits) as fetcher,
    ):
        slow = [asyncio.create_task(fetcher.fetch(f"http://{HOST}:{site.port}/slow?{n}", "a")) for n in range(3)]
        fetched = await asyncio.wait_for(fetcher.fetch(f"http://{HOST}:{site.port}/b", "b"), WAIT_S)
        assert fetched.body == b"hi"
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
