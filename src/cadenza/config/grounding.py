"""Builds the settings of grounding: attachments, memory and web search."""

from collections.abc import Mapping

from cadenza.config.checks import Table, is_private
from cadenza.config.proxies import proxy_for
from cadenza.config.read import Reader
from cadenza.config.settings import Grounding, Search, Secret

AT = ("grounding", "search")
DEFAULT_INDEX = "./data/index.db"
OF_WEB_ENGINES = ("url", "api_key_env", "allow_networks", "price", "searches_per_day")
ENGINE_URLS = {"brave": "https://api.search.brave.com", "tavily": "https://api.tavily.com"}


def build_grounding(values: Table, reader: Reader, environ: Mapping[str, str]) -> Grounding:
    """Without a section for search, with an empty one or with `true`, the local engine is used once it has an index."""
    given = values.pop("search", True)
    if given is False:
        return Grounding(Search("off", reader.folder / DEFAULT_INDEX), **values)
    return Grounding(_search({} if given is True else given, reader, environ), **values)


def _search(values: Table, reader: Reader, environ: Mapping[str, str]) -> Search:
    engine = values.get("engine")
    url = values.get("url") or ENGINE_URLS.get(str(engine))
    if values and not engine and ("index" not in values or any(name in values for name in OF_WEB_ENGINES)):
        reader.problem((*AT, "engine"), 'missing; it must be "searxng", "brave", "tavily" or "local"')
    if engine == "searxng" and not url:
        reader.problem((*AT, "url"), 'missing; it must be the address of your SearXNG, like "http://127.0.0.1:8888"')
    if engine in ENGINE_URLS and "api_key_env" not in values:
        reader.problem((*AT, "api_key_env"), "missing; it must name the environment variable that has the engine's key")
    if engine == "local":
        for name in OF_WEB_ENGINES:
            if name in values:
                reader.problem((*AT, name), "the local engine does not use it")
    if url and url.startswith("http://") and not is_private(url):
        reader.problem((*AT, "url"), "http sends queries unencrypted; use https")
    key = environ.get(values.get("api_key_env", ""), "").strip()
    if not (key.isascii() and key.isprintable()):
        reader.problem((*AT, "api_key_env"), "the key must be one line of printable ASCII characters, and nothing else")
    proxy = reader.attempt((*AT, "url"), proxy_for, url, environ) if url else None
    wants_index = engine == "local" or (engine is None and "index" in values)
    price_nano = values.pop("price", 0)
    given = {"engine": "local", **values, "url": url, "index": reader.folder / values.get("index", DEFAULT_INDEX)}
    return Search(
        **given,
        price_nano=price_nano,
        wants_index=wants_index,
        api_key=Secret(key) if key else None,
        proxy=Secret(proxy) if proxy else None,
    )
