"""The check of `cadenza doctor` for web search: the engine answers, or there is an index."""

from cadenza.app import search_settings
from cadenza.cli.check import Check
from cadenza.config import Settings
from cadenza.gateway.grounding.search.engines.probe import probe
from cadenza.gateway.grounding.search.finder import build_web_engine


async def check_search(settings: Settings) -> Check:
    given = settings.grounding.search
    if given.api_key_env and not given.api_key:
        return Check("search", "warning", f"{given.engine} was not asked: its key is not set")
    search = search_settings(given)
    if search.engine == "local":
        if search.index.exists():
            return Check("search", "ok", f"local: the documents in {search.index}")
        return Check("search", "ok", "off: there is no engine, and no index of local documents")
    engine = build_web_engine(search)
    try:
        found = await probe(engine)
    finally:
        await engine.close()
    return Check("search", "ok" if found.works else "fault", found.detail)
