"""The check of the shared state by `cadenza doctor`: Valkey answers, takes writes, and is new enough."""

from cadenza.cli.doctor.check import Check
from cadenza.fleet.shared import MEMORY

VERSION_MIN = 7
TODO = {
    "WRONGPASS": "Check user and password in shared_state.url.",
    "NOAUTH": "Put user and password into shared_state.url.",
    "NOPERM": "Let this user run scripts, publish and subscribe, and write keys that begin with {cadenza}:.",
    "READONLY": "Point shared_state.url to the primary: this one is a replica.",
}


async def check_shared_state(url: str) -> Check:
    if url == MEMORY:
        return Check("shared", "ok", "rates and slots are counted in each process")
    from cadenza.fleet.valkey.connection import ValkeyUnreachable, probe  # noqa: PLC0415 needs hiredis

    try:
        found = await probe(url)
    except ValkeyUnreachable as reason:
        known = (todo for code, todo in TODO.items() if code in str(reason))
        return Check("shared", "fault", str(reason), next(known, "Check shared_state.url, and that Valkey is up."))
    name = f"{found.server} {'.'.join(map(str, found.version))}"
    if found.version < (VERSION_MIN,):
        return Check("shared", "fault", f"{name} is too old", "Use any Valkey, or Redis 7 or later.")
    if found.is_cluster:
        return Check("shared", "fault", f"{name} is a cluster", "Use a single server, with a replica if you like.")
    return Check("shared", "ok", f"{name} answers in {found.trip_s * 1000:.1f} ms")
