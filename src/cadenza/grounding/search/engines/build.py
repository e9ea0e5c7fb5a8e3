"""Makes the engine that the operator chose."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from cadenza.grounding.search.engines.base import Engine
from cadenza.grounding.search.engines.brave import BraveEngine, brave_headers
from cadenza.grounding.search.engines.searxng import HEADERS, SearxngEngine
from cadenza.grounding.search.engines.tavily import TavilyEngine, tavily_headers
from cadenza.http.client import HttpClient
from cadenza.http.client_connection import GuardedConnection

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
    match choice.name:
        case "searxng":
            return SearxngEngine(_client(choice, HEADERS), choice.timeout_s)
        case "brave":
            return BraveEngine(_client(choice, brave_headers(choice.api_key)), choice.timeout_s)
        case "tavily":
            return TavilyEngine(_client(choice, tavily_headers(choice.api_key)), choice.timeout_s)


def _client(choice: EngineChoice, headers: Mapping[str, str]) -> HttpClient:
    return HttpClient(choice.url, headers, choice.proxy, GuardedConnection)
