"""Tavily. A basic search costs one credit of Tavily's."""

import msgspec

from cadenza.grounding.search.engines.web import EngineRequest, WebEngine

OVER_LIMIT = {432, 433}  # the limit of the plan or of the key, and that of paying as you go


class TavilyEngine(WebEngine):
    """Tavily's API for web search."""

    name = "tavily"

    @staticmethod
    def headers(api_key: str) -> dict[str, str]:
        return {
            "accept": "application/json",
            "content-type": "application/json",
            "authorization": f"Bearer {api_key}",
        }

    def request(self, query: str, count: int) -> EngineRequest:
        fields = {
            "query": query,
            "max_results": count,
            "search_depth": "basic",
            "topic": "general",
            "include_answer": False,
            "include_raw_content": False,
            "include_images": False,
        }
        return "POST", "/search", msgspec.json.encode(fields)

    def reason(self, status: int, body: bytes) -> str:
        return "quota" if status in OVER_LIMIT else super().reason(status, body)
