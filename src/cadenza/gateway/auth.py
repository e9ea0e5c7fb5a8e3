"""Who is asking, and may they? Always the store, so that a key revoked or made elsewhere counts on the next request.

Missing, malformed, unknown, revoked and expired keys take one path: digest, one look-up, one answer.
Stance on failure: a store that does not answer lets nobody in.
"""

import time

from cadenza.core.apikey import digest_key
from cadenza.core.errors import Forbidden, Unauthenticated
from cadenza.core.records import Principal
from cadenza.gateway.call import Call
from cadenza.store import keys
from cadenza.store.database import Database


async def authenticate(call: Call, scope: str, db: Database) -> Principal:
    """The principal behind the key, if the key is live and has the scope."""
    digest = digest_key(_presented_key(call.headers))
    async with db.read() as connection:
        key = await keys.find_by_digest(connection, digest)
    if key is None or keys.state_of(key, time.time_ns() // 1_000_000) != "active":
        raise Unauthenticated
    if scope not in key.scopes:
        raise Forbidden(f"This key lacks the scope '{scope}'. Use a key that has it, or one without restrictions.")
    return Principal(key.id, key.account_id, key.scopes, key.preferred_class)


def _presented_key(headers: dict[bytes, bytes]) -> bytes:
    """`Authorization: Bearer` wins; `x-api-key` is read only where there is no Authorization header."""
    authorization = headers.get(b"authorization")
    if authorization is None:
        return headers.get(b"x-api-key", b"").strip()
    scheme, _, key = authorization.strip().partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""
