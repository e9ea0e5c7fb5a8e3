"""SearXNG, on a machine of the operator's: a private address is fine here.

The query goes in the body of a POST, so that it stands in no access log. SearXNG answers 403 unless its settings allow
the format JSON. Words of a query that SearXNG would read as commands lose their mark: `!!x` is a redirect to another
site, `!x` chooses an engine, `:x` a language, and `<1` a time limit.
"""

from urllib.parse import urlencode

import msgspec

from cadenza.grounding.search.engines.base import fit_count
from cadenza.grounding.search.engines.endpoint import Endpoint, status_reason
from cadenza.grounding.search.engines.results import decode_answer, read_hits
from cadenza.grounding.search.engines.text import fit_query
from cadenza.grounding.search.records import Hit
from cadenza.http.client import HttpClient

HEADERS = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
SAFE_SEARCH_MODERATE = "1"
COMMAND_MARKS = "!?:<"


class _Answer(msgspec.Struct):
    results: list[msgspec.Raw]


class SearxngEngine:
    """A SearXNG instance. It cannot be told how many results are wanted: it gives a page of them."""

    name = "searxng"

    def __init__(self, http: HttpClient, timeout_s: float) -> None:
        self._endpoint = Endpoint(http, timeout_s, _reason)

    async def search(self, query: str, count: int) -> list[Hit]:
        words = _without_commands(fit_query(query))
        if not words:
            return []
        form = urlencode({"q": words, "format": "json", "safesearch": SAFE_SEARCH_MODERATE})
        body = await self._endpoint.ask("POST", "/search", form.encode())
        return read_hits(decode_answer(body, _Answer).results, fit_count(count))

    async def close(self) -> None:
        await self._endpoint.close()


def _without_commands(query: str) -> str:
    return " ".join(filter(None, (word.lstrip(COMMAND_MARKS) for word in query.split())))


def _reason(status: int, body: bytes) -> str:
    return "json_disabled" if status == 403 else status_reason(status, body)
