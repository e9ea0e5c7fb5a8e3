"""robots.txt: what a site allows, how its file is found, and what is kept of it."""

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.parts.grounding.search.pages.addresses import parse_target
from cadenza.parts.grounding.search.pages.robots import (
    ALL_ALLOWED,
    FILE_BYTES_MAX,
    LINES_MAX,
    NONE_ALLOWED,
    RULES_CHARS_MAX,
    is_allowed,
    parse_rules,
)
from cadenza.parts.grounding.search.records import FetchFailed
from tests.parts.grounding.fetch_site import HOST, OK, Names, failure, fetching, page, redirect, serving
from tests.unit.http.peer import LOCALHOST, Peer, Visit, refusing_port
from tests.unit.upstreams.clock import Clock

HI = page(b"hi")


def robots(text: str) -> bytes:
    return page(text.encode(), "text/plain")


def allows(file: str, path: str) -> bool:
    return is_allowed(parse_rules(file.encode()), parse_target(f"https://{HOST}{path}").path)


# file, path, whether it is allowed
RULES = [
    ("", "/a", True),
    ("User-agent: *\nDisallow: /", "/a", False),
    ("User-agent: *\nDisallow:", "/a", True),
    ("user-AGENT: *\ndisallow: /a", "/b", True),
    ("User-agent: *\nDisallow: /a", "/ab?c", False),
    ("User-agent: *\nDisallow: /\nAllow: /a", "/ab", True),
    ("User-agent: *\nDisallow: /a\nAllow: /", "/ab", False),
    ("User-agent: *\nDisallow: /*.php$", "/a/b.php", False),
    ("User-agent: *\nDisallow: /*.php$", "/a/b.php?c", True),
    ("User-agent: *\nDisallow: /*b*b$", "/b", True),
    ("User-agent: *\nDisallow: /*b*b$", "/bcb", False),
    ("User-agent: *\nDisallow: /*.php$", "/a.php.php", False),
    ("User-agent: *\nDisallow: /a$", "/a/a", True),
    ("User-agent: *\nDisallow: /a%2fb", "/a%2Fb", False),
    ("User-agent: *\nDisallow: /a%2fb", "/a/b", True),
    ("User-agent: *\nDisallow: /%7Ea", "/~a", False),
    ("User-agent: *\nAllow: /a\nDisallow: /a", "/a", True),
    ("User-agent: *\nDisallow: a", "/a", True),
    ("User-agent: *\nDisallow: /ü", "/%C3%BC", False),
    ("User-agent: Other\nDisallow: /", "/a", True),
    ("User-agent: Cadenza\nDisallow: /", "/a", False),
    ("User-agent: cadenza/2.0\nDisallow: /", "/a", False),
    ("User-agent: Cadenzabot\nDisallow: /", "/a", True),
    ("User-agent: Cad\nDisallow: /", "/a", True),
    ("User-agent: *\nDisallow: /\n\nUser-agent: Cadenza\nDisallow: /b", "/a", True),
    ("User-agent: Cadenza\nAllow: /\n\nUser-agent: *\nDisallow: /", "/a", True),
    ("User-agent: Other\nUser-agent: Cadenza\nDisallow: /", "/a", False),
    ("User-agent: Cadenza\nUser-agent: Other\nDisallow: /", "/a", False),
    ("User-agent: Cadenza\nCrawl-delay: 9\nUser-agent: Other\nDisallow: /", "/a", True),
    ("User-agent: *\nCrawl-delay: 9\nUser-agent: Cadenza\nDisallow: /b\nUser-agent: x\nDisallow: /", "/a", True),
    ("User-agent: *\nSitemap: https://a.example/\nUser-agent: Other\nDisallow: /", "/a", False),
    ("User-agent: Cadenza # us\nDisallow: / # all", "/a", False),
    ("\ufeffUser-agent: *\r\nDisallow: /\r\n", "/a", False),
    ("User-agent: *\rDissalow: /", "/a", False),
    ("User-agent: *\nDisallow /a", "/a", False),
    ("Disallow: /\nUser-agent: *\nAllow: /", "/a", True),
    ("User-agent: Cadenza\nDisallow: /a\nUser-agent: x\nDisallow: /\nUser-agent: Cadenza\nDisallow: /b", "/b", False),
    ("<html><body>Not found: go home</body></html>", "/a", True),
]


@pytest.mark.parametrize(("file", "path", "wanted"), RULES)
def test_rules(file: str, path: str, wanted: bool) -> None:
    """The rules of our own group count, else those of `*`; the longest match wins."""
    assert allows(file, path) == wanted


WORDS = ["User-agent: *", "User-agent: Cadenza", "user agent x", "Disallow: /", "allow: /a*$", "Crawl-delay: 1e999",
         "request-rate: 1/0", "Sitemap:", ":", "", "$" * 9, "visit-time: 1-2", "Host:", "%", "allow: %%$*", "\0",
         "\u2028"]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=20), max_size=30), st.binary(max_size=20))
def test_any_file(lines: list[str], end: bytes) -> None:
    """Any file is read to an answer."""
    assert is_allowed(parse_rules("\n".join(lines).encode(errors="replace") + end), "/a") in {True, False}


def test_a_file_that_is_made_to_be_slow() -> None:
    """A file with many lines or many rules for us allows nothing; other agents' rules are not kept."""
    agents = "".join(f"user-agent: {n}\n" for n in range(4000))
    rules = "".join(f"disallow: /{n}\n" for n in range(4000))
    assert parse_rules((agents + rules).encode()) == ALL_ALLOWED
    assert parse_rules(b"user-agent: *\n" + b"allow: /\n" * (RULES_CHARS_MAX // 8 + 1)) == NONE_ALLOWED
    assert parse_rules(b":\n" * (LINES_MAX + 1)) == NONE_ALLOWED
    assert parse_rules(b"\n" * FILE_BYTES_MAX) == ALL_ALLOWED


async def failure_reason(answer: bytes) -> str | None:
    """Why a page of a site with this robots.txt is not fetched; None if it is."""
    async with Peer(serving({"/": HI, "/robots.txt": answer})) as site, fetching() as fetcher:
        try:
            await fetcher.fetch(f"http://{HOST}:{site.port}/")
        except FetchFailed as failed:
            return failed.reason
        return None


def status(code: int) -> bytes:
    return b"HTTP/1.1 %d No\r\ncontent-length: 2\r\n\r\nno" % code


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([*map(status, (400, 401, 403, 404, 410, 429, 451))], None),
        ([*map(status, (500, 502, 503, 204, 304, 600))], "robots"),
        ([b"", b"no HTTP\r\n\r\n", OK + b"content-length: 9\r\n\r\nhalf"], "robots"),
        ([OK + b"content-encoding: %b\r\n\r\nhi" % coding for coding in (b"br", b"gzip")], "robots"),
        ([*map(redirect, ("/robots.txt", "ftp://a.example/"))], "robots"),
        ([redirect("http://169.254.169.254/robots.txt")], "private"),
    ],
    ids=["refused", "in trouble", "broken", "compressed", "redirects", "redirect to a private address"],
)
async def test_a_site_whose_file_is_not_there(answers: Iterable[bytes], reason: str | None) -> None:
    """4xx allows everything; a file that is in trouble, broken or redirects wrongly allows nothing."""
    for answer in answers:
        assert await failure_reason(answer) == reason, answer


async def test_a_file_that_redirects() -> None:
    """The redirects of robots.txt are followed, and its rules count for the site that was asked."""
    pages = {"/": HI, "/robots.txt": redirect("/rules"), "/rules": robots("User-agent: Cadenza\nDisallow: /")}
    async with Peer(serving(pages)) as site, fetching() as fetcher:
        assert await failure(fetcher, f"http://{HOST}:{site.port}/") == "robots"


async def test_a_file_without_end() -> None:
    """Of a robots.txt that never ends, the first 500 KiB count."""

    async def endless(visit: Visit) -> None:
        await visit.say(OK + b"\r\nuser-agent: *\ndisallow: /private\n")
        while True:
            await visit.say(b"# nothing more to say, many times over, in a line of some length\n" * 1000)

    async with Peer(serving({"/": HI, "/private": HI, "/robots.txt": endless})) as site, fetching() as fetcher:
        assert (await fetcher.fetch(f"http://{HOST}:{site.port}/")).body == b"hi"
        assert await failure(fetcher, f"http://{HOST}:{site.port}/private") == "robots"


async def test_a_redirect_to_a_page_that_is_not_allowed() -> None:
    """The target of a redirect is fetched only if its own site allows it."""
    names = Names({HOST: [[LOCALHOST]], "other.example": [[LOCALHOST]]})
    closed = serving({"/": HI, "/robots.txt": robots("User-agent: *\nDisallow: /")})
    async with Peer(closed) as other, fetching(names) as fetcher:
        async with Peer(serving({"/": redirect(f"http://other.example:{other.port}/")})) as site:
            assert await failure(fetcher, f"http://{HOST}:{site.port}/") == "robots"
        assert [request.path for visit in other.visits for request in visit.requests] == ["/robots.txt"]


def times_asked(site: Peer) -> int:
    return sum(request.path == "/robots.txt" for visit in site.visits for request in visit.requests)


async def test_the_rules_are_kept_for_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several pages of one site, also at once, ask for robots.txt once within ten minutes."""
    clock = Clock(asyncio.get_running_loop(), monkeypatch)
    async with Peer(serving({f"/{n}": HI for n in range(9)})) as site, fetching() as fetcher:
        await asyncio.gather(*(fetcher.fetch(f"http://{HOST}:{site.port}/{n}") for n in range(8)))
        assert times_asked(site) == 1
        await clock.leap(601.0)
        await fetcher.fetch(f"http://{HOST}:{site.port}/8")
        assert times_asked(site) == 2


async def test_a_site_that_cannot_be_reached() -> None:
    """A host that refuses connections is unreachable, not forbidden, and is tried again at the next request."""
    with refusing_port() as port:
        async with fetching() as fetcher:
            assert await failure(fetcher, f"http://{HOST}:{port}/") == "unreachable"
