"""Brave Search. The query is part of the address, as Brave's API has it; with https only Brave sees it."""

from urllib.parse import urlencode

import msgspec

from cadenza.core.content import Content
from cadenza.grounding.search.engines.web import EngineRequest, WebEngine, decode_answer

TOKEN_REFUSED = b"SUBSCRIPTION_TOKEN"  # in the code of an error: the key is missing or invalid


class _Web(Content, msgspec.Struct):
    results: list[msgspec.Raw] = []


class _BraveAnswer(Content, msgspec.Struct):
    """`web` is missing if nothing was found."""

    type: str
    web: _Web | None = None


class BraveEngine(WebEngine):
    """Brave's API for web search."""

    name = "brave"

    @staticmethod
    def headers(api_key: str) -> dict[str, str]:
        return {"accept": "application/json", "x-subscription-token": api_key}

    def request(self, query: str, count: int) -> EngineRequest:
        fields = {
            "q": query,
            "count": count,
            "safesearch": "moderate",
            "result_filter": "web",
            "text_decorations": "false",
        }
        return "GET", f"/res/v1/web/search?{urlencode(fields)}", b""

    def results(self, body: bytes) -> list[msgspec.Raw]:
        web = decode_answer(body, _BraveAnswer).web
        return web.results if web else []

    def reason(self, status: int, body: bytes) -> str:
        """Brave answers 422 to a wrong key, and to a query that it does not take."""
        return "key_refused" if TOKEN_REFUSED in body else super().reason(status, body)
