"""What `cadenza doctor` finds out about the server at the address of the config."""

from cadenza import parts
from cadenza.config import Settings
from cadenza.parts.valkey.connection import ValkeyUnreachable, probe
from cadenza.parts.valkey.problems import SHARED_STATE_FAILS
from cadenza.terminal.checks import Check, Checks

VERSION_MIN = 7
ADVICE = {
    "WRONGPASS": "Check user and password in shared_state.url.",
    "NOAUTH": "Put user and password into shared_state.url.",
    "NOPERM": "Let this user run scripts, publish and subscribe, and write keys that begin with {cadenza}:.",
    "READONLY": "Point shared_state.url to the primary: this one is a replica.",
}


async def check_valkey(url: str) -> Check:
    try:
        found = await probe(url)
    except ValkeyUnreachable as reason:
        known = (todo for code, todo in ADVICE.items() if code in str(reason))
        problem = SHARED_STATE_FAILS.problem(str(reason), next(known, ""))
        return Check("shared", "fault", problem.words, problem.advice)
    name = f"{found.server} {'.'.join(map(str, found.version))}"
    if found.version < (VERSION_MIN,):
        return Check("shared", "fault", f"{name} is too old", "Use any Valkey, or Redis 7 or later.")
    if found.is_cluster:
        return Check("shared", "fault", f"{name} is a cluster", "Use a single server, with a replica if you like.")
    return Check("shared", "ok", f"{name} answers in {found.trip_s * 1000:.1f} ms")


async def check_shared_state(settings: Settings) -> list[Check]:
    part = parts.find(settings.shared_state.url)
    return [await check_valkey(settings.shared_state.url)] if part and part.name == "valkey" else []


checks: Checks = check_shared_state
