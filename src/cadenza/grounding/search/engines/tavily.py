"""Tavily. A basic search costs one credit of Tavily's."""

import msgspec

from cadenza.grounding.search.engines.base import fit_count
from cadenza.grounding.search.engines.endpoint import Endpoint, status_reason
from cadenza.grounding.search.engines.results import decode_answer, read_hits
from cadenza.grounding.search.engines.text import fit_query
from cadenza.grounding.search.records import Hit
from cadenza.http.client import HttpClient

OVER_LIMIT = {432, 433}  # the limit of the plan or of the key, and that of paying as you go


def tavily_headers(api_key: str) -> dict[str, str]:
    return {
        "accept": "application/json",
        "content-type": "application/json",
        "authorization": f"Bearer {api_key}",
    }


class _Answer(msgspec.Struct):
    results: list[msgspec.Raw]


class TavilyEngine:
    """Tavily's API for web search."""

    name = "tavily"

    def __init__(self, http: HttpClient, timeout_s: float) -> None:
        self._endpoint = Endpoint(http, timeout_s, _reason)

    async def search(self, query: str, count: int) -> list[Hit]:
        words = fit_query(query)
        if not words:
            return []
        fields = {
            "query": words,
            "max_results": fit_count(count),
            "search_depth": "basic",
            "topic": "general",
            "include_answer": False,
            "include_raw_content": False,
            "include_images": False,
        }
        body = await self._endpoint.ask("POST", "/search", msgspec.json.encode(fields))
        return read_hits(decode_answer(body, _Answer).results, fit_count(count))

    async def close(self) -> None:
        await self._endpoint.close()


def _reason(status: int, body: bytes) -> str:
    return "quota" if status in OVER_LIMIT else status_reason(status, body)
