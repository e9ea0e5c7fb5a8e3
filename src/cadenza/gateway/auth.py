"""Who is asking, and may they? Always the store, so that a key revoked or made elsewhere counts on the next request.

What cannot be a key is refused by its checksum, and a flood of keys that are none before any look-up. Missing,
malformed, unknown, revoked and expired keys get one answer. Stance on failure: a store that does not answer lets
nobody in.
"""

import time

from cadenza.core.apikey import digest_key, is_well_formed
from cadenza.core.errors import Forbidden, Unauthenticated
from cadenza.core.records import Principal
from cadenza.gateway.gateway import Gateway
from cadenza.gateway.limits import rate_lines, refusal
from cadenza.http.exchange import Exchange
from cadenza.store import keys


async def authenticate(gw: Gateway, exchange: Exchange, scope: str) -> Principal:
    """The principal behind the key, if the key is live, has the scope and is within its rate. Every request counts."""
    principal = await _identify(gw, exchange)
    gw.note_use(exchange, principal)
    rate = gw.rate_of(principal)
    ticket = gw.rates.take(principal.key_id, rate)
    exchange.more_lines = rate_lines(ticket)
    if scope not in principal.scopes:
        raise Forbidden(f"This key lacks the scope '{scope}'. Use a key that has it, or one without restrictions.")
    if not ticket.is_granted:
        gw.metrics.refused.labels("rate").inc()
        raise refusal(ticket, rate)
    return principal


async def _identify(gw: Gateway, exchange: Exchange) -> Principal:
    presented = _presented_key(exchange.headers)
    digest = digest_key(presented)
    if gw.unknown_keys.is_live(digest):
        return await _look_up(gw, exchange, digest)
    if not is_well_formed(presented):
        raise Unauthenticated
    gw.unknown_keys.check(digest, exchange.address)
    async with gw.unknown_keys.door:
        gw.unknown_keys.check(digest, exchange.address)
        return await _look_up(gw, exchange, digest)


async def _look_up(gw: Gateway, exchange: Exchange, digest: bytes) -> Principal:
    found = await keys.look_up(gw.db, digest)
    if found is None or keys.state_of(found, time.time_ns() // 1_000_000) != "active":
        gw.unknown_keys.note_dead(digest, exchange.address)
        raise Unauthenticated
    gw.unknown_keys.note_live(digest)
    if found.classes_epoch > gw.classes_epoch:
        await gw.catch_up(found.classes_epoch)
    scopes = keys.scopes_of(found.scopes)
    return Principal(found.id, found.account_id, scopes, found.preferred_class, found.requests_per_second, found.burst)


def _presented_key(headers: dict[bytes, bytes]) -> bytes:
    """`Authorization: Bearer` wins; `x-api-key` is read only where there is no Authorization header."""
    authorization = headers.get(b"authorization")
    if authorization is None:
        return headers.get(b"x-api-key", b"").strip()
    scheme, _, key = authorization.strip().partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""
