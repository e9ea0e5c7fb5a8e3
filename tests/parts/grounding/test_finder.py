"""The finder: from a question to sources, with a real engine's protocol, real pages and the real reader."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec
import pytest

from cadenza.core.grounding import Source
from cadenza.core.tokens import estimate_tokens
from cadenza.observe import Observer, make_log
from cadenza.parts.grounding.files.reader import DocumentReader, ReaderLimits
from cadenza.parts.grounding.files.records import FetchedPage
from cadenza.parts.grounding.search.finder import Finder, fitting
from cadenza.parts.grounding.search.pages.addresses import Network
from cadenza.parts.grounding.search.pages.client import FetchLimits
from cadenza.parts.grounding.search.pages.fetch import PageFetcher
from cadenza.parts.grounding.search.records import (
    SearchRequest,
    UnreadPage,
)
from cadenza.parts.grounding.settings import SearchSettings
from tests.parts.grounding.engine_peer import engine_at, reply
from tests.parts.grounding.fetch_site import HOST, LOOPBACK, NOT_FOUND, PATIENT, Names, page
from tests.parts.grounding.scripted_engine import ScriptedEngine
from tests.unit.http.peer import Peer, Visit
from tests.unit.http.raw_client import WAIT_S, until
from tests.unit.upstreams.clock import Clock

ASKED = ["Who won the Vuelta in 2026? Search the web."]
ROOM = 2_000
OPTIONS = SearchSettings(engine="searxng", timeout_s=WAIT_S)


def article(text: str, title: str = "A title") -> bytes:
    words = "These words make the article long enough to be one. " * 8
    return page(f"<html><head><title>{title}</title></head><body><p>{text} {words}</p></body></html>".encode())


class Web:
    """A SearXNG and its pages, on one port. A path without an answer stays silent."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes | None] = {}
        self.results: bytes | None = None
        self.asked: list[str] = []
        self.peer = Peer(self._serve)

    @property
    def engine_url(self) -> str:
        return f"http://127.0.0.1:{self.peer.port}"

    @property
    def url(self) -> str:
        """Of the pages."""
        return f"http://{HOST}:{self.peer.port}"

    def find(self, results: Mapping[str, str]) -> None:
        """The results of the engine: a snippet for each path."""
        hits = [{"url": f"{self.url}{path}", "title": path, "content": text} for path, text in results.items()]
        self.results = reply(json.dumps({"query": "q", "results": hits}).encode())

    async def _serve(self, visit: Visit) -> None:
        path = (await visit.request()).path
        self.asked.append(path)
        answer = self.results if path == "/search" else self.pages.get(path, NOT_FOUND)
        if answer is None:
            await visit.until_left()
        else:
            await visit.say(answer)


@pytest.fixture
async def reader() -> AsyncIterator[DocumentReader]:
    reader = DocumentReader(Observer(make_log(io.StringIO())))
    yield reader
    await reader.stop()


@contextlib.asynccontextmanager
async def finding(
    web: Web, reader: DocumentReader, limits: FetchLimits = PATIENT, networks: Sequence[Network] = LOOPBACK
) -> AsyncIterator[Finder]:
    engine = engine_at("searxng", web.engine_url)
    finder = Finder(engine, PageFetcher(limits, networks, Names()), reader, OPTIONS)
    try:
        yield finder
    finally:
        await finder.close()


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    web = Web()
    async with web.peer:
        yield web


async def test_the_best_pages_are_read(web: Web, reader: DocumentReader) -> None:
    """The first results are quoted from their pages, the others by what the engine said; all in its order."""
    web.find({"/a": "snippet a", "/b": "snippet b", "/c": "snippet c", "/d": "snippet d"})
    web.pages = {"/a": article("Ada Lark won the Vuelta."), "/b": article("Nothing here."), "/c": article("Cycling.")}
    async with finding(web, reader) as finder:
        sources = (await finder.find(SearchRequest("owner", ASKED, ROOM))).sources
    assert [source.url.removeprefix(web.url) for source in sources] == ["/a", "/b", "/c", "/d"]
    assert "Ada Lark won the Vuelta." in sources[0].text
    assert sources[0].title == "A title"
    assert sources[3].text == "snippet d"
    assert "/d" not in web.asked


async def test_a_search_that_is_too_late_has_failed(reader: DocumentReader) -> None:
    """The time of the whole search ends inside of what is charged, as a failure and not as a client that leaves."""
    seen = list[type[BaseException]]()

    @contextlib.asynccontextmanager
    async def charge(_query: str) -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            seen.append(type(error))
            raise

    engine = ScriptedEngine()
    engine.hold()
    finder = Finder(
        engine, PageFetcher(PATIENT, LOOPBACK, Names()), reader, msgspec.structs.replace(OPTIONS, timeout_s=0.02)
    )
    with pytest.raises(TimeoutError):
        await finder.find(SearchRequest("owner", ASKED, ROOM, charge))
    assert seen == [TimeoutError]
    engine.release()
    await finder.close()


async def test_results_are_quoted_without_pages_that_are_not_read_in_time(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the reader is busy with a page of another owner, the snippets still come within the time limit."""
    clock = Clock(asyncio.get_running_loop(), monkeypatch, is_stopped=True)
    reader = DocumentReader(Observer(make_log(io.StringIO())), ReaderLimits(page_cpu_s=10))
    web.find({"/a": "snippet a"})
    web.pages = {"/a": article("Ada Lark won the Vuelta.")}
    heavy = FetchedPage("https://heavy.example/", "text/html", b"<div><p>word <b>x</b></p>" * 300_000)
    busy = asyncio.create_task(reader.read_pages("other", [heavy] * 20, "what?", ROOM))
    await asyncio.sleep(0)  # it has the turn
    async with finding(web, reader) as finder:
        search = asyncio.create_task(finder.find(SearchRequest("owner", ASKED, ROOM)))
        await until(lambda: "/a" in web.asked)
        await clock.leap(0)
        assert not search.done()
        await clock.leap(WAIT_S)
        sources = (await search).sources
    assert not busy.done()
    assert [source.text for source in sources] == ["snippet a"]
    busy.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await busy
    await reader.stop()


async def test_a_page_that_never_comes_is_left_out(web: Web, reader: DocumentReader) -> None:
    """It is quoted by its snippet, and the other pages are not lost."""
    web.find({"/slow": "snippet of the slow one", "/gone": "", "/b": "snippet b"})
    web.pages = {"/slow": None, "/b": article("Ada Lark won the Vuelta.")}
    async with finding(web, reader, limits=FetchLimits(connect_s=WAIT_S, page_s=2.0)) as finder:
        sources = (await finder.find(SearchRequest("owner", ASKED, ROOM))).sources
    texts = {source.url.removeprefix(web.url): source.text for source in sources}
    assert texts["/slow"] == "snippet of the slow one"
    assert "Ada Lark" in texts["/b"]
    assert "/gone" not in texts


async def test_an_address_in_the_message_is_read(web: Web, reader: DocumentReader) -> None:
    """The engine is not asked. A page that cannot be read is told, so that the model does not invent it: no source."""
    web.pages = {"/here": article("The treaty was signed in Lucerne.", "Treaty")}
    async with finding(web, reader) as finder:
        question = f"Where was it signed, according to {web.url}/here and {web.url}/missing ?"
        found = await finder.find(SearchRequest("owner", [question], ROOM))
    [here] = found.sources
    assert "signed in Lucerne" in here.text
    assert (here.title, here.url) == ("Treaty", f"{web.url}/here")
    assert found.unread == [UnreadPage(f"{web.url}/missing", "could not be read at the moment")]
    assert "/search" not in web.asked


async def test_three_addresses_of_a_message_are_read(web: Web, reader: DocumentReader) -> None:
    """The model is told of the others, as far as half of the room suffices, and why they were not read."""
    web.pages = {f"/{number}": article(f"Number {number}.") for number in range(9)}
    urls = [f"{web.url}/{number}" for number in range(9)]
    async with finding(web, reader) as finder:
        found = await finder.find(SearchRequest("owner", [f"Compare {' '.join(urls)}"], ROOM))
        cramped = await finder.find(SearchRequest("owner", [f"Compare {' '.join(urls)}"], 200))
    reason = "was not read: only the first 3 addresses of a message are read"
    assert [source.url for source in found.sources] == urls[:3]
    assert found.unread == [UnreadPage(url, reason) for url in urls[3:]]
    assert {"/3", "/8"}.isdisjoint(web.asked)
    assert 0 < len(cramped.unread) < 6


async def test_addresses_of_this_machine_are_read_if_they_are_allowed(web: Web, reader: DocumentReader) -> None:
    """Like others where `allow_networks` has them; otherwise they are part of a developer's text."""
    web.find({})
    web.pages = {"/here": article("The pump is green.")}
    asked = [f"Which colour has the pump, by {web.engine_url}/here ?"]
    async with finding(web, reader) as finder:
        [source] = (await finder.find(SearchRequest("owner", asked, ROOM))).sources
    assert "The pump is green." in source.text
    web.asked.clear()
    async with finding(web, reader, networks=()) as finder:
        assert not (await finder.find(SearchRequest("owner", asked, ROOM))).unread
    assert "/here" not in web.asked


async def test_a_request_may_ask_for_a_search(web: Web, reader: DocumentReader) -> None:
    """Then the words of a message decide nothing, unless they are none or say not to search."""
    web.find({"/a": "snippet a"})
    web.pages = {"/a": article("Rain falls.")}

    async with finding(web, reader) as finder:
        request = SearchRequest("owner", ["Write a haiku about rain."], ROOM, is_asked=True)
        assert len((await finder.find(request)).sources) == 1
        for text in ("", "Do not search the web: what is new?"):
            asked = msgspec.structs.replace(request, texts=[text])
            assert not await finder.find(asked)
    assert web.asked.count("/search") == 1


async def test_a_message_that_needs_no_web_asks_nobody(web: Web, reader: DocumentReader) -> None:
    """Chat, code and translation cost no request."""
    async with finding(web, reader) as finder:
        for text in ("Hello!", "Write a haiku about rain.", "def f(x): return x\n\nWhat does this code do?"):
            assert not await finder.find(SearchRequest("owner", [text], ROOM))
    assert web.asked == []


def test_sources_fit_the_tokens() -> None:
    """What does not fit is left out, in order; a shorter one after it may still fit."""
    sources = [
        Source(f"https://{name}.example", name, "word " * count) for name, count in (("a", 50), ("b", 500), ("c", 5))
    ]
    kept = fitting(sources, 300)
    assert [source.title for source in kept] == ["a", "c"]
    assert sum(estimate_tokens(source.text) for source in kept) <= 300
    assert fitting(sources, 10) == []


def test_a_page_is_one_source() -> None:
    """Two addresses may lead to one page: each number that an answer cites is another one. Without text it is none."""
    first, second = Source("https://a.example", "a", "one"), Source("https://a.example", "A", "two")
    assert fitting([first, second], 500) == [first]
    assert fitting([Source("https://a.example", "a", "")], 500) == []
