"""Brave Search. The query is part of the address, as Brave's API has it; with https only Brave sees it."""

from urllib.parse import urlencode

import msgspec

from cadenza.grounding.search.engines.base import fit_count
from cadenza.grounding.search.engines.endpoint import Endpoint, status_reason
from cadenza.grounding.search.engines.results import decode_answer, read_hits
from cadenza.grounding.search.engines.text import fit_query
from cadenza.grounding.search.records import Hit
from cadenza.http.client import HttpClient

TOKEN_REFUSED = b"SUBSCRIPTION_TOKEN"  # in the code of an error: the key is missing or invalid


def brave_headers(api_key: str) -> dict[str, str]:
    return {"accept": "application/json", "x-subscription-token": api_key}


class _Web(msgspec.Struct):
    results: list[msgspec.Raw] = []


class _Answer(msgspec.Struct):
    """`web` is missing if nothing was found."""

    type: str
    web: _Web | None = None


class BraveEngine:
    """Brave's API for web search."""

    name = "brave"

    def __init__(self, http: HttpClient, timeout_s: float) -> None:
        self._endpoint = Endpoint(http, timeout_s, _reason)

    async def search(self, query: str, count: int) -> list[Hit]:
        words = fit_query(query)
        if not words:
            return []
        fields = {
            "q": words,
            "count": fit_count(count),
            "safesearch": "moderate",
            "result_filter": "web",
            "text_decorations": "false",
        }
        body = await self._endpoint.ask("GET", f"/res/v1/web/search?{urlencode(fields)}")
        web = decode_answer(body, _Answer).web
        return read_hits(web.results if web else [], fit_count(count))

    async def close(self) -> None:
        await self._endpoint.close()


def _reason(status: int, body: bytes) -> str:
    """Brave answers 422 to a wrong key, and to a query that it does not take."""
    return "key_refused" if TOKEN_REFUSED in body else status_reason(status)
