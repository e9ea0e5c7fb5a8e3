"""What each engine is sent, and what it makes of a good answer."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from cadenza.config.checks import Secret
from cadenza.parts.grounding.search.records import Hit
from cadenza.parts.grounding.settings import EngineName, SearchSettings
from tests.parts.grounding.engine_peer import KEY, NAMES, QUERY, answer, asking, engine_at, hits_of, reply, result
from tests.unit.http.peer import Peer, always, responding

every_engine = pytest.mark.parametrize("name", NAMES)
TWO = [result("https://a.example/1", "One", "First"), result("http://b.example/2?x=1", "Two", "Second")]


@every_engine
async def test_results_become_hits_in_order(name: EngineName) -> None:
    """Address, title and snippet of each result, in the order of the engine."""
    hits = await hits_of(name, always(reply(answer(name, TWO))))
    assert hits == [
        Hit("https://a.example/1", "One", "First"),
        Hit("http://b.example/2?x=1", "Two", "Second"),
    ]


@every_engine
async def test_no_more_hits_than_asked_for(name: EngineName) -> None:
    """An engine that gives more results than were asked for is cut."""
    assert len(await hits_of(name, always(reply(answer(name, TWO))), count=1)) == 1


@every_engine
async def test_nothing_found_is_no_failure(name: EngineName) -> None:
    """An empty list of results is an answer; Brave leaves the list out."""
    assert await hits_of(name, always(reply(answer(name, [])))) == []
    if name == "brave":
        assert await hits_of(name, always(reply(b'{"type": "search", "query": {}}'))) == []


@every_engine
async def test_connection_is_reused(name: EngineName) -> None:
    """Two searches go over one connection."""
    async with asking(name, always(reply(answer(name, TWO)))) as (engine, peer):
        for _ in range(2):
            await engine.search(QUERY, 5)
        assert peer.requests_per_visit == [2]


@every_engine
async def test_proxy(name: EngineName) -> None:
    """With a proxy, the request goes to the proxy and names the engine's address."""
    async with Peer(always(reply(answer(name, TWO)))) as proxy:
        engine = engine_at(name, "http://engine.example:8888", proxy=proxy.url)
        assert len(await engine.search(QUERY, 5)) == 2
        await engine.close()
        assert proxy.visits[0].requests[0].path.startswith("http://engine.example:8888/")


async def test_searxng_is_sent_a_form() -> None:
    """The query is in the body, never in the address, which access logs keep."""
    async with asking("searxng", responding(reply(answer("searxng", TWO)))) as (engine, peer):
        await engine.search("Größe & Preis", 5)
        request = peer.visits[0].requests[0]
    assert (request.method, request.path) == ("POST", "/v1/search")
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"
    assert parse_qs(request.body.decode()) == {"q": ["Größe & Preis"], "format": ["json"], "safesearch": ["1"]}
    assert KEY not in str(request.headers)


async def test_searxng_gets_no_commands() -> None:
    """Words that SearXNG would take for commands lose their mark."""
    async with asking("searxng", responding(reply(answer("searxng", TWO)))) as (engine, peer):
        await engine.search("!!g !images :fr <1 ! what is c++?", 5)
        request = peer.visits[0].requests[0]
    assert parse_qs(request.body.decode())["q"] == ["g images fr 1 what is c++?"]


async def test_brave_is_sent_its_fields() -> None:
    """The query in the address, and the key in Brave's own header."""
    async with asking("brave", responding(reply(answer("brave", TWO)))) as (engine, peer):
        await engine.search("Größe & Preis", 5)
        request = peer.visits[0].requests[0]
    address = urlsplit(request.path)
    assert (request.method, address.path) == ("GET", "/v1/res/v1/web/search")
    assert parse_qs(address.query) == {
        "q": ["Größe & Preis"],
        "count": ["5"],
        "safesearch": ["moderate"],
        "result_filter": ["web"],
        "text_decorations": ["false"],
    }
    assert request.headers["x-subscription-token"] == KEY


async def test_tavily_is_sent_json() -> None:
    """The query and the count in a JSON body, and the key as a Bearer token."""
    async with asking("tavily", responding(reply(answer("tavily", TWO)))) as (engine, peer):
        await engine.search("Größe & Preis", 20)
        request = peer.visits[0].requests[0]
    sent = json.loads(request.body)
    assert (request.method, request.path) == ("POST", "/v1/search")
    assert (sent["query"], sent["max_results"], sent["search_depth"]) == ("Größe & Preis", 20, "basic")
    assert request.headers["authorization"] == f"Bearer {KEY}"


@every_engine
async def test_query_of_nothing(name: EngineName) -> None:
    """A query without a word finds nothing, and the engine is not asked."""
    async with asking(name, responding()) as (engine, peer):
        assert await engine.search("", 5) == []
        assert peer.visits == []


def test_secrets_are_not_shown() -> None:
    """The representation of a choice has neither the key nor an address."""
    proxy = "http://user:secret@proxy.example:3128"
    settings = SearchSettings(engine="brave", url="https://gateway.example", api_key=Secret(KEY), proxy=proxy)
    assert not [text for text in ("gateway", KEY, "secret") if text in repr(settings)]
