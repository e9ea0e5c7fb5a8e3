"""Makes the engine that the operator chose."""

from typing import Literal

import msgspec

from cadenza.gateway.grounding.search.engines import brave, tavily
from cadenza.gateway.grounding.search.engines.base import Engine
from cadenza.gateway.grounding.search.engines.brave import BraveEngine, brave_headers
from cadenza.gateway.grounding.search.engines.searxng import HEADERS, SearxngEngine
from cadenza.gateway.grounding.search.engines.tavily import TavilyEngine, tavily_headers
from cadenza.http.client import HttpClient

WebEngineName = Literal["searxng", "brave", "tavily"]


class EngineChoice(msgspec.Struct, frozen=True):
    """An engine on the web. SearXNG needs a `url`; the others need a key, and a `url` only behind a gateway."""

    name: WebEngineName
    timeout_s: float
    url: str = ""
    api_key: str = ""
    proxy: str | None = None

    def __repr__(self) -> str:  # without the key and the passwords that addresses may have
        return f"EngineChoice({self.name})"


def base_url(name: WebEngineName, url: str = "") -> str:
    """The address that is asked. It decides which proxy of the environment is used."""
    return url or {"searxng": "", "brave": brave.BASE_URL, "tavily": tavily.BASE_URL}[name]


def build_engine(choice: EngineChoice) -> Engine:
    url = base_url(choice.name, choice.url)
    assert url, "a SearXNG has a url"
    match choice.name:
        case "searxng":
            return SearxngEngine(HttpClient(url, HEADERS, choice.proxy), choice.timeout_s)
        case "brave":
            return BraveEngine(HttpClient(url, brave_headers(choice.api_key), choice.proxy), choice.timeout_s)
        case "tavily":
            return TavilyEngine(HttpClient(url, tavily_headers(choice.api_key), choice.proxy), choice.timeout_s)
