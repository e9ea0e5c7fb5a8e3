"""SearXNG, on a machine of the operator's: a private address is fine here.

The query goes in the body of a POST, so that it stands in no access log. SearXNG answers 403 unless its settings allow
the format JSON. Words of a query that SearXNG would read as commands lose their mark: `!!x` is a redirect to another
site, `!x` chooses an engine, `:x` a language, and `<1` a time limit.
"""

from urllib.parse import urlencode

import msgspec

from cadenza.grounding.search.engines.web import EngineRequest, ResultList, WebEngine, decode_answer, fit_query
from cadenza.grounding.search.records import Hit

SAFE_SEARCH_MODERATE = "1"
COMMAND_MARKS = "!?:<"


class SearxngEngine(WebEngine):
    """A SearXNG instance. It cannot be told how many results are wanted: it gives a page of them."""

    name = "searxng"

    @staticmethod
    def headers(api_key: str) -> dict[str, str]:  # noqa: ARG004 it has no keys
        return {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}

    async def search(self, query: str, count: int) -> list[Hit]:
        return await super().search(_without_commands(fit_query(query)), count)

    def request(self, query: str, count: int) -> EngineRequest:  # noqa: ARG002 it gives a page of results
        form = urlencode({"q": query, "format": "json", "safesearch": SAFE_SEARCH_MODERATE})
        return EngineRequest("POST", "/search", form.encode())

    def results(self, body: bytes) -> list[msgspec.Raw]:
        return decode_answer(body, ResultList).results

    def reason(self, status: int, body: bytes) -> str:
        return "json_disabled" if status == 403 else super().reason(status, body)


def _without_commands(query: str) -> str:
    return " ".join(filter(None, (word.lstrip(COMMAND_MARKS) for word in query.split())))
