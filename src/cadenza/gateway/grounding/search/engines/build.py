"""Makes the engine that the operator chose."""

from typing import Literal

import msgspec

from cadenza.gateway.grounding.search.engines.base import Engine
from cadenza.gateway.grounding.search.engines.brave import BraveEngine, brave_headers
from cadenza.gateway.grounding.search.engines.searxng import HEADERS, SearxngEngine
from cadenza.gateway.grounding.search.engines.tavily import TavilyEngine, tavily_headers
from cadenza.http.client import HttpClient

WebEngineName = Literal["searxng", "brave", "tavily"]


class EngineChoice(msgspec.Struct, frozen=True):
    """An engine on the web, and its address. Brave and Tavily need a key."""

    name: WebEngineName
    timeout_s: float
    url: str
    api_key: str = ""
    proxy: str | None = None

    def __repr__(self) -> str:  # without the key and the passwords that addresses may have
        return f"EngineChoice({self.name})"


def build_engine(choice: EngineChoice) -> Engine:
    url = choice.url
    match choice.name:
        case "searxng":
            return SearxngEngine(HttpClient(url, HEADERS, choice.proxy), choice.timeout_s)
        case "brave":
            return BraveEngine(HttpClient(url, brave_headers(choice.api_key), choice.proxy), choice.timeout_s)
        case "tavily":
            return TavilyEngine(HttpClient(url, tavily_headers(choice.api_key), choice.proxy), choice.timeout_s)
