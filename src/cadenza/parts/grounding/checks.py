"""What `cadenza doctor` finds out about the search engine of the config."""

from cadenza.config import Settings
from cadenza.parts.grounding.search.engines.build import build_web_engine, probe
from cadenza.parts.grounding.settings import GroundingSettings
from cadenza.terminal.checks import Check, Checks


async def check_search(settings: Settings) -> list[Check]:
    search = GroundingSettings.given_in(settings).search
    if search.engine == "off":
        return [Check("search", "ok", "off: the config names no engine")]
    if search.api_key_env and not search.api_key:
        return [Check("search", "warning", f"{search.engine} was not asked: its key is not set")]
    engine = build_web_engine(search)
    try:
        found = await probe(engine)
    finally:
        await engine.close()
    return [Check("search", "ok" if found.works else "fault", found.detail)]


checks: Checks = check_search
