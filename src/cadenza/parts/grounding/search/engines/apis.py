"""The engines on the web: what SearXNG, Brave and Tavily are sent, and what their statuses mean.

SearXNG is on a machine of the operator's: a private address is fine here. It answers 403 unless its settings allow the
format JSON. Words of a query that it would read as commands lose their mark: `!!x` is a redirect to another site, `!x`
chooses an engine, `:x` a language, and `<1` a time limit. Its query goes in the body of a POST, so that it stands in no
access log. Brave has the query in the address; with https only Brave sees it. A basic search costs one credit of
Tavily's.
"""

from urllib.parse import urlencode

import msgspec

from cadenza.core.content import Content
from cadenza.parts.grounding.search.engines.web import EngineApi, EngineRequest, ResultList, decode_answer

COMMAND_MARKS = "!?:<"
ACCEPT = {"accept": "application/json"}


def ask_searxng(query: str, _count: int) -> EngineRequest:
    """It cannot be told how many results are wanted: it gives a page of them."""
    words = (word.lstrip(COMMAND_MARKS) for word in query.split())
    form = {"q": " ".join(filter(None, words)), "format": "json", "safesearch": "1"}  # moderate
    return "POST", "/search", urlencode(form).encode()


def ask_brave(query: str, count: int) -> EngineRequest:
    fields = {
        "q": query,
        "count": count,
        "safesearch": "moderate",
        "result_filter": "web",
        "text_decorations": "false",
    }
    return "GET", f"/res/v1/web/search?{urlencode(fields)}", b""


def ask_tavily(query: str, count: int) -> EngineRequest:
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


class _BraveAnswer(Content, msgspec.Struct):
    """`web` is missing if nothing was found."""

    type: str
    web: ResultList | None = None


def brave_results(body: bytes) -> list[msgspec.Raw]:
    web = decode_answer(body, _BraveAnswer).web
    return web.results if web else []


ENGINE_APIS = {
    api.name: api
    for api in (
        EngineApi(
            "searxng",
            ask_searxng,
            headers=lambda _key: ACCEPT | {"content-type": "application/x-www-form-urlencoded"},
            reasons={403: "json_disabled"},
        ),
        EngineApi(
            "brave",
            ask_brave,
            headers=lambda key: ACCEPT | {"x-subscription-token": key},
            results=brave_results,
            key_refused=b"SUBSCRIPTION_TOKEN",  # it answers 422 to a wrong key, and to a query that it does not take
        ),
        EngineApi(
            "tavily",
            ask_tavily,
            headers=lambda key: ACCEPT | {"content-type": "application/json", "authorization": f"Bearer {key}"},
            reasons={432: "quota", 433: "quota"},  # the limit of the plan or of the key, and that of paying as you go
        ),
    )
}
