"""Makes the engine that the config names, and probes it for `cadenza doctor`."""

import msgspec

from cadenza.http.client import HttpClient
from cadenza.http.client_connection import GuardedConnection
from cadenza.parts.grounding.search.engines.apis import ENGINE_APIS
from cadenza.parts.grounding.search.engines.base import Engine
from cadenza.parts.grounding.search.engines.web import WebEngine
from cadenza.parts.grounding.search.records import EngineFailed
from cadenza.parts.grounding.settings import SearchSettings

ENGINE_TIME = 0.5  # of the time limit of a search, so that pages can be read in the other half

ADVICE = {
    "unreachable": "cannot be reached. Check `url`, the network and the proxy of the environment.",
    "timeout": "did not answer in time. Check that it is not overloaded, or raise `timeout_s`.",
    "broken": "closed the connection before its answer was complete. Check what stands between it and this service.",
    "too_large": "answered more than 1 MiB. Check that `url` is that of the engine.",
    "not_json": "answered something that is not JSON. Check that `url` is that of the engine, without a login page.",
    "malformed": "answered JSON without results. Check that `url` is that of the engine.",
    "redirected": "answered with a redirect, which is not followed. Set `url` to the address that it leads to.",
    "not_found": "does not know the path of its API. Set `url` to its base address, without a path such as /search.",
    "key_refused": "does not accept the key. Check the variable that `api_key_env` names.",
    "quota": "has no searches left for this key. Raise the limit of the plan.",
    "busy": "refuses further searches for now: its rate limit is reached. Try again later, or raise the limit.",
    "refused": "refused a plain query. Check that `url` is that of the engine.",
    "no_files": "could not be asked: this process has no file left. Raise the limit of open files.",
    "no_results": "answers, but finds nothing for a common word.",
}
ADVICE_BY_ENGINE = {
    ("searxng", "json_disabled"): (
        "does not give JSON. Add `json` to `search.formats` in its settings.yml and restart it."
        " If that is done already, something in front of it refuses this service."
    ),
    ("searxng", "busy"): (
        "refuses this service by its limiter. Set `server.limiter: false` in its settings.yml,"
        " or add this machine's address to `pass_ip` in its limiter.toml."
    ),
    ("searxng", "key_refused"): "asks for a login. Let this service reach it without one.",
    ("searxng", "failed"): "answered with an error. Read its log.",
    ("searxng", "no_results"): ("answers, but finds nothing: its own engines may be blocked. Look at its page /stats."),
}


class EngineProbe(msgspec.Struct, frozen=True):
    """Whether an engine works, and a sentence that begins with its name."""

    works: bool
    detail: str


def build_web_engine(settings: SearchSettings) -> Engine:
    assert settings.url
    api = ENGINE_APIS[settings.engine]
    http = HttpClient(settings.url, api.headers(settings.api_key or ""), settings.proxy, GuardedConnection)
    return WebEngine(api, http, settings.timeout_s * ENGINE_TIME)


async def probe(engine: Engine) -> EngineProbe:
    """Search for a common word. With Brave and Tavily it counts like any other search."""
    try:
        reason = "" if await engine.search("wikipedia", count=3) else "no_results"
    except EngineFailed as failed:
        reason = failed.reason
    general = ADVICE.get(reason, "answered with an error. Try again later.")
    said = ADVICE_BY_ENGINE.get((engine.name, reason), general) if reason else "answers"
    return EngineProbe(works=not reason, detail=f"{engine.name} {said}")
