"""Engines that ask a peer in the test's own loop, and the answers that it gives in the format of each engine."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from cadenza.config.checks import Secret
from cadenza.parts.grounding.search.engines.base import Engine
from cadenza.parts.grounding.search.engines.build import ENGINE_TIME, build_web_engine
from cadenza.parts.grounding.search.records import EngineFailed, Hit
from cadenza.parts.grounding.settings import EngineName, SearchSettings
from tests.unit.http.peer import Peer, Script
from tests.unit.http.raw_client import WAIT_S

NAMES: tuple[EngineName, ...] = ("searxng", "brave", "tavily")
KEY = "key-of-the-tests"
QUERY = "height of Mont Blanc"


def result(url: object, title: object = "A title", snippet: object = "A snippet") -> dict[str, object]:
    """A result with the words of every engine for a snippet: each has one of them."""
    return {"url": url, "title": title, "snippet": snippet}


def answer(name: str, results: object) -> bytes:
    """The JSON of an engine with these results."""
    if isinstance(results, list):
        word = "description" if name == "brave" else "content"
        results = [{word if key == "snippet" else key: each[key] for key in each} for each in results]
    whole: dict[str, Any] = {"query": QUERY, "results": results, "answers": [], "response_time": 0.3}
    if name == "brave":
        whole = {"type": "search", "query": {"original": QUERY}, "web": {"type": "search", "results": results}}
    return json.dumps(whole).encode()


def reply(body: bytes, status: str = "200 OK", content_type: str = "application/json", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def engine_at(name: EngineName, url: str, timeout_s: float = WAIT_S, proxy: str | None = None) -> Engine:
    """An engine that is given so much time for a search."""
    settings = SearchSettings(engine=name, url=url, api_key=Secret(KEY), proxy=proxy, timeout_s=timeout_s / ENGINE_TIME)
    return build_web_engine(settings)


@contextlib.asynccontextmanager
async def asking(name: EngineName, script: Script, timeout_s: float = WAIT_S) -> AsyncIterator[tuple[Engine, Peer]]:
    async with Peer(script) as peer:
        engine = engine_at(name, peer.url, timeout_s)
        try:
            yield engine, peer
        finally:
            await engine.close()


async def hits_of(name: EngineName, script: Script, count: int = 5) -> list[Hit]:
    async with asking(name, script) as (engine, _):
        return await engine.search(QUERY, count)


async def failure_of(engine: Engine, query: str = QUERY) -> str:
    """The reason why a search fails."""
    try:
        hits = await engine.search(query, 5)
    except EngineFailed as failed:
        return failed.reason
    raise AssertionError(f"the search did not fail: {len(hits)} hits")
