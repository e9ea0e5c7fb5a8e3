"""Hostile pages: what never ends, drips, lies or explodes is given up within bounds, and its connection is closed."""

import asyncio
import itertools
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest

from cadenza.parts.grounding.search.pages.addresses import Address
from cadenza.parts.grounding.search.pages.client import MIB
from cadenza.parts.grounding.search.pages.fetch import PageFetcher
from tests.parts.grounding.fetch_site import HOST, HTML, NOT_FOUND, OK, PATIENT, failure, fetching, serving
from tests.unit.http.peer import Peer, Script, Visit, happens
from tests.unit.http.raw_client import until
from tests.unit.upstreams.clock import Clock

PAGE_S = 10.0  # less than tests wait, so that a leap of the clock ends a page and no test
TIMED = msgspec.structs.replace(PATIENT, page_s=PAGE_S)
HASTY = msgspec.structs.replace(PATIENT, page_s=0.5)
GROWTH_BYTES_MAX = 12 * MIB
PDF = OK + b"content-type: application/pdf\r\n"
CHUNKED = HTML + b"transfer-encoding: chunked\r\n\r\n"


def saying(*parts: bytes) -> Script:
    """The parts, and then nothing until the client has closed the connection."""

    async def script(visit: Visit) -> None:
        await visit.say(*parts)
        await visit.until_left()

    return script


def repeating(head: bytes, part: bytes) -> Script:
    """The head, and then the part again and again until the client has closed the connection."""

    async def script(visit: Visit) -> None:
        try:
            await visit.say(head)
            while True:
                await visit.say(part)
        except ConnectionError:
            visit.left.set()

    return script


def breaking_off(part: bytes) -> Script:
    async def script(visit: Visit) -> None:
        await visit.say(part)
        visit.left.set()

    return script


async def failure_reason(answer: Script) -> str:
    """Why the page is not fetched. The connection must be closed by then, or soon after."""
    async with Peer(serving({"/": answer})) as site, fetching() as fetcher:
        reason = await failure(fetcher, f"http://{HOST}:{site.port}/")
        await happens(site.visits[-1].left)
        assert site.visits[-1].requests[0].path == "/"
        return reason


TOO_LARGE: dict[str, Callable[[], Script]] = {
    "a length of 1 GB": lambda: saying(HTML + b"content-length: 1000000000\r\n\r\n"),
    "a body without end": lambda: repeating(HTML + b"\r\n", b"x" * 65536),
    "chunks without end": lambda: repeating(CHUNKED, b"10000\r\n" + b"x" * 65536 + b"\r\n"),
    "a length of 9 MiB of PDF": lambda: saying(PDF + b"content-length: 9437184\r\n\r\n"),
}


@pytest.mark.parametrize("case", TOO_LARGE)
async def test_a_page_that_is_too_large(case: str) -> None:
    """A page of 1 GB and one without end are refused at the bound, in bounded memory."""
    answer = TOO_LARGE[case]()
    tracemalloc.start()
    reason = await failure_reason(answer)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reason == "too_large"
    assert peak_bytes < GROWTH_BYTES_MAX


BROKEN: dict[str, Script] = {
    "no HTTP": saying(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "headers without end": repeating(OK, b"x-header: " + b"x" * 1000 + b"\r\n"),
    "interim responses without end": repeating(b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"),
    "junk in place of chunks": saying(CHUNKED + b"zz\r\njunk\r\n"),
    "a chunk size without end": repeating(CHUNKED, b"0" * 1000),
    "two lengths": saying(HTML + b"content-length: 2\r\ncontent-length: 3\r\n\r\nhi"),
    "a length and chunks": saying(
        HTML + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
    ),
    "a length that is no number": saying(HTML + b"content-length: two\r\n\r\nhi"),
    "a body that breaks off": breaking_off(HTML + b"content-length: 100\r\n\r\nhalf"),
    "a chunk that breaks off": breaking_off(CHUNKED + b"64\r\nhalf"),
    "an unknown transfer coding": saying(HTML + b"transfer-encoding: gzip\r\n\r\nhi"),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_an_answer_that_is_broken(case: str) -> None:
    """What is not HTTP, has a head or framing without end, frames its body in two ways or breaks off is given up."""
    assert await failure_reason(BROKEN[case]) == "broken"


async def test_more_bytes_than_the_length_says() -> None:
    """A body ends where its length says; what follows is not part of the page, and the connection is not used again."""
    answer = HTML + b"content-length: 2\r\n\r\nhi" + HTML + b"content-length: 6\r\n\r\nforged"
    async with Peer(serving({"/": saying(answer)})) as site, fetching() as fetcher:
        assert (await fetcher.fetch(f"http://{HOST}:{site.port}/")).body == b"hi"
        await happens(site.visits[-1].left)


SLOW: dict[str, Script] = {
    "silence": saying(),
    "silence after the head": saying(HTML + b"\r\n"),
    "a body that drips": repeating(HTML + b"\r\n", b"x"),
    "a head that drips": repeating(OK + b"x-header: ", b"x"),
}


async def reason_in_time(script: Script, path: str, clock: Clock) -> str:
    """Why a page is not fetched whose time is over once this path was asked for and something was answered."""
    async with Peer(script) as site, fetching(limits=TIMED) as fetcher:
        task = asyncio.create_task(failure(fetcher, f"http://{HOST}:{site.port}/"))
        await until(lambda: any(request.path == path for visit in site.visits for request in visit.requests))
        await clock.leap(PAGE_S - 1)
        assert not task.done()
        await clock.leap(2)
        reason = await task
        await happens(site.visits[-1].left)
        return reason


@pytest.mark.parametrize("case", SLOW)
async def test_a_page_that_is_slow(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is silent, or drips byte by byte, is given up when its time is over, whatever has arrived."""
    clock = Clock(asyncio.get_running_loop(), monkeypatch, is_stopped=True)
    assert await reason_in_time(serving({"/": SLOW[case]}), "/", clock) == "timeout"


async def test_a_slow_robots_txt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a page includes its robots.txt."""
    clock = Clock(asyncio.get_running_loop(), monkeypatch, is_stopped=True)
    script = serving({"/robots.txt": repeating(OK + b"\r\n", b"x")})
    assert await reason_in_time(script, "/robots.txt", clock) == "timeout"


async def test_a_resolver_that_does_not_answer() -> None:
    """The time of a page includes the look-up of its host."""

    async def never(_host: str) -> list[Address]:
        await asyncio.Event().wait()
        return []

    fetcher = PageFetcher(HASTY, resolve=never)
    assert await failure(fetcher, f"http://{HOST}/") == "timeout"


async def test_slow_redirects() -> None:
    """The time of a page includes its redirects: each of them in time does not give it more."""
    numbers = itertools.count()

    async def script(visit: Visit) -> None:
        if (await visit.request()).path == "/robots.txt":
            await visit.say(NOT_FOUND)
            return
        await asyncio.sleep(0.2)
        location = b"location: /%d\r\n" % next(numbers)
        await visit.say(b"HTTP/1.1 302 Found\r\n" + location + b"content-length: 0\r\n\r\n")

    async with Peer(script) as site, fetching(limits=HASTY) as fetcher:
        assert await failure(fetcher, f"http://{HOST}:{site.port}/") == "timeout"


LEAVING: dict[str, Script] = {
    "before the head": saying(),
    "within the head": saying(b"HTTP/1.1 200 OK\r\nx-"),
    "within the body": saying(HTML + b"content-length: 9\r\n\r\nhalf"),
}


@pytest.mark.parametrize("case", LEAVING)
async def test_a_client_that_leaves(case: str) -> None:
    """Cancelling a fetch closes its connection at once, wherever it is."""
    async with Peer(serving({"/": LEAVING[case]})) as site, fetching() as fetcher:
        task = asyncio.create_task(fetcher.fetch(f"http://{HOST}:{site.port}/"))
        await until(lambda: len(site.visits) == 2 and bool(site.visits[1].requests))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await happens(site.visits[1].left)


async def test_a_client_that_leaves_during_the_handshake() -> None:
    """Cancelling a fetch during the TLS handshake closes its connection."""

    async def script(visit: Visit) -> None:
        await visit.reader.read(1)
        await visit.until_left()

    async with Peer(script) as site, fetching() as fetcher:
        task = asyncio.create_task(fetcher.fetch(f"https://{HOST}:{site.port}/"))
        await until(lambda: bool(site.visits))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await happens(site.visits[0].left)


async def test_many_hostile_pages_at_once() -> None:
    """Bodies that arrive at once share a bound: many large ones do not fill the memory, and small ones still come."""
    limits = msgspec.structs.replace(PATIENT, held_bytes=4 * MIB, at_once_per_host=32)
    large = OK + b"content-type: application/pdf\r\n\r\n" + bytes(2 * MIB)
    pages: dict[str, bytes | Script] = {f"/{n}": saying(large) for n in range(8)}
    async with Peer(serving({**pages, "/small": HTML + b"\r\nhi"})) as site, fetching(limits=limits) as fetcher:
        url = f"http://{HOST}:{site.port}"
        tasks = [asyncio.create_task(fetcher.fetch(f"{url}/{n}")) for n in range(8)]
        await until(lambda: sum(task.done() for task in tasks) >= 6)
        refused = [task.exception() for task in tasks if task.done()]
        assert {str(reason) for reason in refused} == {"busy"}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (await fetcher.fetch(f"{url}/small")).body == b"hi"
