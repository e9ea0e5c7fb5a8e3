"""Sites on loopback for the page fetcher, and the names by which it finds them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from ipaddress import IPv4Network, ip_address

import pytest

from cadenza.parts.grounding.search.pages.addresses import Address, Network
from cadenza.parts.grounding.search.pages.client import FetchLimits
from cadenza.parts.grounding.search.pages.fetch import PageFetcher
from cadenza.parts.grounding.search.records import FetchFailed
from tests.unit.http.peer import LOCALHOST, Script, Visit
from tests.unit.http.raw_client import WAIT_S

HOST = "site.example"
OK = b"HTTP/1.1 200 OK\r\n"
HTML = OK + b"content-type: text/html\r\n"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
LOOPBACK: tuple[Network, ...] = (IPv4Network("127.0.0.1/32"),)
PATIENT = FetchLimits(connect_s=WAIT_S, page_s=WAIT_S)


def page(body: bytes, content_type: str = "text/html", *fields: bytes) -> bytes:
    lines = b"".join(field + b"\r\n" for field in fields)
    head = b"content-type: %b\r\ncontent-length: %d\r\n" % (content_type.encode(), len(body))
    return OK + head + lines + b"\r\n" + body


def redirect(location: str, status: int = 302) -> bytes:
    return b"HTTP/1.1 %d Moved\r\nlocation: %b\r\ncontent-length: 0\r\n\r\n" % (status, location.encode())


def serving(pages: Mapping[str, bytes | Script]) -> Script:
    """A page for each path; the rest, and so robots.txt, is not found unless it is given."""

    async def script(visit: Visit) -> None:
        answer = pages.get((await visit.request()).path, NOT_FOUND)
        if isinstance(answer, bytes):
            await visit.say(answer)
        else:
            await answer(visit)

    return script


class Names:
    """A resolver. A host may have several answers: each look-up takes the next one, and the last one stays."""

    def __init__(self, hosts: Mapping[str, Sequence[Sequence[str]]] | None = None) -> None:
        self._hosts = {name: list(answers) for name, answers in (hosts or {HOST: [[LOCALHOST]]}).items()}
        self.asked: list[str] = []

    async def __call__(self, host: str) -> list[Address]:
        self.asked.append(host)
        answers = self._hosts.get(host, [[]])
        return [ip_address(text) for text in (answers.pop(0) if len(answers) > 1 else answers[0])]


@contextlib.asynccontextmanager
async def fetching(
    names: Names | None = None, limits: FetchLimits = PATIENT, allow_networks: Sequence[Network] = LOOPBACK
) -> AsyncIterator[PageFetcher]:
    fetcher = PageFetcher(limits, allow_networks, names or Names())
    try:
        yield fetcher
    finally:
        await fetcher.close()


async def failure(fetcher: PageFetcher, url: str) -> str:
    """The reason why a page is not fetched. Neither the error nor its context may quote the URL."""
    with pytest.raises(FetchFailed) as failed:
        async with asyncio.timeout(WAIT_S):
            await fetcher.fetch(url)
    assert str(failed.value) == failed.value.reason
    assert failed.value.__suppress_context__ or failed.value.__context__ is None
    return failed.value.reason
