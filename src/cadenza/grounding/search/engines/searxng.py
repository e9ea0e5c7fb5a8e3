"""SearXNG, on a machine of the operator's: a private address is fine here.

The query goes in the body of a POST, so that it stands in no access log. SearXNG answers 403 unless its settings allow
the format JSON. Words of a query that SearXNG would read as commands lose their mark: `!!x` is a redirect to another
site, `!x` chooses an engine, `:x` a language, and `<1` a time limit.
"""

from urllib.parse import urlencode

from cadenza.grounding.search.engines.web import EngineRequest, WebEngine, fit_query
from cadenza.grounding.search.records import Hit

COMMAND_MARKS = "!?:<"


class SearxngEngine(WebEngine):
    """A SearXNG instance. It cannot be told how many results are wanted: it gives a page of them."""

    name = "searxng"

    @staticmethod
    def headers(api_key: str) -> dict[str, str]:  # noqa: ARG004 it has no keys
        return {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}

    async def search(self, query: str, count: int) -> list[Hit]:
        words = (word.lstrip(COMMAND_MARKS) for word in fit_query(query).split())
        return await super().search(" ".join(filter(None, words)), count)

    def request(self, query: str, count: int) -> EngineRequest:  # noqa: ARG002 it gives a page of results
        form = urlencode({"q": query, "format": "json", "safesearch": "1"})  # moderate
        return "POST", "/search", form.encode()

    def reason(self, status: int, body: bytes) -> str:
        return "json_disabled" if status == 403 else super().reason(status, body)
