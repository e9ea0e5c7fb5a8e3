"""Fetches the web pages that strangers name: within its limits, by the site's robots.txt, and never from a private
address. See docs/decisions/0022.

Every failure is FetchFailed with one of these reasons:

    refused      not the URL of a web page, or one with credentials
    private      the host has an address that is not public
    port         a port other than 80 and 443
    unresolved   the host has no address
    unreachable  no connection could be made
    tls          the certificate or the handshake failed
    broken       the response is not HTTP, or incomplete
    status       a status other than 200
    type         a content type that is not text, JSON, XML or PDF
    encoding     it is compressed, which was not asked for
    too_large    more bytes than a page may have
    timeout      the time limit of the page is over
    redirects    too many redirects, or a loop
    downgrade    a redirect from https to http
    robots       the site's robots.txt does not allow it
    busy         this process has no room
    closed       the fetcher is closed
"""

import asyncio
from collections.abc import Sequence
from weakref import WeakValueDictionary

from cadenza.parts.grounding.files.records import FetchedPage
from cadenza.parts.grounding.search.cache import ContentCache
from cadenza.parts.grounding.search.pages.addresses import (
    AddressRules,
    Network,
    Resolve,
    SystemResolver,
    Target,
    parse_target,
)
from cadenza.parts.grounding.search.pages.client import (
    BodyLimit,
    FetchLimits,
    Headers,
    PageClient,
    get_following,
)
from cadenza.parts.grounding.search.pages.robots import Robots
from cadenza.parts.grounding.search.records import FetchFailed

PDF = "application/pdf"


class PageFetcher:
    """Fetches pages, and caches them for minutes.

    A page counts for the byte budget until its caller drops it, so also while its text waits to be read. `loopback` are
    the networks of this machine that the operator allows.
    """

    def __init__(
        self,
        limits: FetchLimits | None = None,
        allow_networks: Sequence[Network] = (),
        resolve: Resolve | None = None,
    ) -> None:
        self.loopback = tuple(network for network in allow_networks if network.is_loopback)
        self._limits = limits or FetchLimits()
        rules = AddressRules(allow_networks)
        self._client = PageClient(self._limits, rules, resolve or SystemResolver())
        self._robots = Robots(self._client, self._limits)
        self._pages = ContentCache[FetchedPage](asyncio.get_running_loop().time, self._limits.pages)
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # by owner
        self._is_closed = False

    async def fetch(self, url: str, owner: str = "") -> FetchedPage:
        """FetchFailed if the page cannot or must not be read. Cancelling closes its connection."""
        target = parse_target(url)
        if page := self._pages.get(target.url):
            return page
        slot = self._slots.setdefault(owner, asyncio.Semaphore(self._limits.at_once_per_owner))
        try:
            async with asyncio.timeout(self._limits.page_s), slot:
                return await self._fetch(target)
        except TimeoutError:
            raise FetchFailed("timeout") from None

    async def close(self) -> None:
        """Drop all pages. Fetches that run end with their callers."""
        self._is_closed = True
        self._pages.clear()
        self._robots.clear()

    async def _fetch(self, target: Target) -> FetchedPage:
        if self._is_closed:
            raise FetchFailed("closed")
        found_at, response = await get_following(
            self._client, target, self._admit, self._limits.redirects, self._robots.check
        )
        page = FetchedPage(found_at.url, _content_type(response.headers), response.body)
        self._client.budget.reserve_for(page, len(page.body))
        may_be_cached = b"no-store" not in response.headers.get(b"cache-control", b"").lower()
        if may_be_cached and not self._is_closed:
            self._pages.put(target.url, page, len(page.body))
        return page

    def _admit(self, status: int, headers: Headers) -> BodyLimit:
        if status != 200:
            raise FetchFailed("status")
        media_type = _content_type(headers).partition(";")[0].strip().lower()
        if media_type == PDF:
            return BodyLimit(self._limits.pdf_bytes)
        if not _is_text(media_type):
            raise FetchFailed("type")
        return BodyLimit(self._limits.page_bytes)


def _content_type(headers: Headers) -> str:
    return headers.get(b"content-type", b"").decode("latin-1")


def _is_text(media_type: str) -> bool:
    kind, _, name = media_type.partition("/")
    if kind == "text":
        return bool(name)
    return kind == "application" and (name in {"json", "xml"} or name.endswith(("+json", "+xml")))
